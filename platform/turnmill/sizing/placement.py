"""Which processes of a job run on which machines."""

from dataclasses import dataclass

from omegaconf import DictConfig

from turnmill.jobs import AgentTrainingJob


@dataclass(frozen=True, slots=True)
class Place:
    """Machines of one kind, and what runs on each of them."""

    machines: str
    per_gpu: tuple[str, ...]
    others: tuple[str, ...]


def has_reference(config: DictConfig) -> bool:
    """Return whether the trainer holds the initial policy, for a KL penalty in the reward or in the loss."""
    return bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)


def placement(job: AgentTrainingJob, config: DictConfig) -> tuple[Place, ...]:
    """Return where verl's configuration of a job places its processes."""
    train, rollout = job.spec.resources.train, job.spec.resources.rollout
    parallel = config.actor_rollout_ref.rollout.tensor_model_parallel_size
    is_hybrid = config.actor_rollout_ref.hybrid_engine
    learners = ["a rank of the policy"]
    if config.critic.enable:
        learners.append("a rank of the critic")
    if has_reference(config):
        learners.append("a rank of the reference")
    if is_hybrid:
        learners.append(_engine(parallel))
    loops = f"{job.spec.resources.agent_loop_workers} agent loop workers in all"
    places = [
        Place("head", (), ("the driver", "the controller of verl's queue")),
        Place(
            _machines(train.nodes, train.gpus_per_node, train.accelerator),
            tuple(learners),
            (loops, "rows of verl's queue"),
        ),
    ]
    if not is_hybrid:
        places.append(Place(_machines(rollout.replicas, parallel, rollout.accelerator), (_engine(parallel),), ()))
    if (reward := job.spec.reward_model) is not None:
        gpus = reward.tensor_parallel
        places.append(
            Place(_machines(reward.replicas, gpus, reward.accelerator), (_part("the reward model", gpus),), ())
        )
    return tuple(places)


def _engine(parallel: int) -> str:
    return _part("an engine", parallel)


def _part(whole: str, parallel: int) -> str:
    return whole if parallel == 1 else f"a {parallel}th of {whole}"


def _machines(count: int, gpus: int, accelerator: str | None) -> str:
    of = accelerator or "GPU of any kind"
    return f"{count} x {gpus} {of}"

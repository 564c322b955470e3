"""Conversion of a Verlog command line into a job."""

from collections.abc import Iterable, Mapping

from turnmill.conversion.command_line import read_settings
from turnmill.conversion.converted_job import Conversion, new_job, put_rest
from turnmill.conversion.verl import put_fields
from turnmill.core.errors import SettingsError

ACTOR, ROLLOUT, CRITIC, TRAINER = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic", "trainer"

DEFAULTS: Mapping[str, object] = {
    "algorithm.step_gamma": 1.0,
    "algorithm.step_lam": 1.0,
    "algorithm.use_kl_in_reward": False,
    "critic.highlight_first": False,
    "envs.binary_reward": False,
    "envs.captioner.type": "naive",
    "envs.env_name": "babyai",
    "envs.format_penalty": 0.0,
    "envs.n_rollouts": 16,
    "envs.task": "BabyAI-MixedTrainLocal-v0/goto",
}
"""Verlog's values of settings whose defaults in a job are others."""

FIELDS: Mapping[str, str] = {
    "actor_rollout_ref.model.path": "model.path",
    f"{ACTOR}.clip_ratio": "algorithm.clipRatio",
    f"{ACTOR}.entropy_coeff": "algorithm.entropyCoefficient",
    f"{ACTOR}.grad_clip": "algorithm.gradientClip",
    f"{ACTOR}.optim.lr": "algorithm.actorLearningRate",
    f"{ACTOR}.optim.weight_decay": "algorithm.weightDecay",
    f"{ACTOR}.ppo_epochs": "algorithm.epochs",
    f"{ACTOR}.ppo_max_token_len_per_gpu": "resources.train.microBatchTokens",
    f"{ACTOR}.ppo_mini_batch_size": "algorithm.minibatchTurns",
    f"{ACTOR}.ulysses_sequence_parallel_size": "resources.train.sequenceParallel",
    f"{ROLLOUT}.gpu_memory_utilization": "resources.rollout.gpuMemoryShare",
    f"{ROLLOUT}.max_num_seqs": "resources.rollout.maxSequences",
    f"{ROLLOUT}.temperature": "agent.temperature",
    f"{ROLLOUT}.tensor_model_parallel_size": "resources.rollout.tensorParallel",
    f"{ROLLOUT}.val_kwargs.temperature": "training.validation.temperature",
    "algorithm.step_gamma": "algorithm.stepGamma",
    "algorithm.step_lam": "algorithm.stepLambda",
    "algorithm.token_gamma": "algorithm.tokenGamma",
    "algorithm.token_lam": "algorithm.tokenLambda",
    f"{CRITIC}.cliprange_value": "algorithm.valueClip",
    f"{CRITIC}.optim.lr": "algorithm.criticLearningRate",
    "data.max_prompt_length": "agent.maxPromptTokens",
    "data.max_response_length": "agent.maxResponseTokens",
    "data.train_batch_size": "training.turnsPerStep",
    "envs.babyai_kwargs.num_dists": "environment.options.numDists",
    "envs.binary_reward": "environment.binaryReward",
    "envs.captioner.max_cot_history": "agent.memory.thoughtTurns",
    "envs.captioner.max_text_history": "agent.memory.textTurns",
    "envs.crafter_kwargs.area": "environment.options.area",
    "envs.crafter_kwargs.view": "environment.options.view",
    "envs.format_penalty": "environment.invalidPenalty",
    "envs.n_rollouts": "environment.count",
    f"{TRAINER}.critic_warmup": "algorithm.criticWarmup.batches",
    f"{TRAINER}.critic_warmup_step": "algorithm.criticWarmup.steps",
    f"{TRAINER}.logger": "tracking.loggers",
    f"{TRAINER}.n_gpus_per_node": "resources.train.gpusPerNode",
    f"{TRAINER}.nnodes": "resources.train.nodes",
    f"{TRAINER}.project_name": "tracking.project",
}
"""Fields of a job by Verlog's names."""

READ_HERE = frozenset(
    {
        *("algorithm.adv_estimator", "algorithm.use_kl_in_reward", "envs.captioner.type", "envs.env_name", "envs.task"),
        *(f"algorithm.kl_ctrl.{name}" for name in ("horizon", "kl_coef", "target_kl", "type")),
        *(f"{CRITIC}.highlight_first", f"{CRITIC}.highlight_ratio", f"{CRITIC}.model.path"),
        *(f"{TRAINER}.{name}" for name in ("experiment_name", "render", "render_path", "save_freq", "test_freq")),
        *(f"{TRAINER}.{name}" for name in ("total_epochs", "total_training_steps", "val_only")),
        # What is in an environment's observations, and how long its episodes are.
        "envs.captioner.max_image_history",
        *(f"envs.{name}.max_episode_steps" for name in ("crafter_kwargs", "minihack_kwargs", "textworld_kwargs")),
        "envs.babyai_kwargs.max_steps",
    }
)

NAMES = {"nle": "nethack"}
"""Environments that have another name here."""

EPISODE_TURNS = {"babyai": 128, "babaisai": 100, "crafter": 2000, "minihack": 100, "textworld": 40}
"""Turns of an episode in Verlog, unless they are set."""

WITHOUT_EFFECT: Mapping[str, str] = {
    "trainer.balance_batch": "rows are balanced, and sorted by time where it matters.",
    "trainer.log_val_generations": "look at them with turnmill trajectories.",
    "data.train_files": "there is no data set: its file is a placeholder.",
    "data.val_files": "there is no data set: its file is a placeholder.",
}


def convert(words: Iterable[str], *, steps: int | None = None) -> Conversion:
    """Convert the words of a Verlog command line. Raises SettingsError for an environment that is not known."""
    chosen = read_settings(words)
    given = {**DEFAULTS, **chosen}
    found = new_job(given, "verlog")
    found.put("agent.type", "verlog")
    _put_environment(found, given)
    found.put("algorithm.type", "turn_ppo")
    put_fields(found, given, FIELDS)
    _put_critic(found, given)
    _put_kl(found, given)
    _put_schedule(found, given, steps)
    rest = {}
    for name, value in chosen.items():
        if name in WITHOUT_EFFECT:
            found.note(name, WITHOUT_EFFECT[name])
        elif name.startswith("envs.") and name not in FIELDS and name not in READ_HERE:
            found.note(name, "there is no such option here; spec.environment.options has those of the environment.")
        elif name not in FIELDS and name not in READ_HERE:
            rest[name] = value
    put_rest(found, rest)
    return found


def _put_environment(found: Conversion, given: Mapping[str, object]) -> None:
    original = str(given["envs.env_name"])
    name, task = NAMES.get(original, original), str(given["envs.task"])
    if original not in (*EPISODE_TURNS, "nle"):
        raise SettingsError(
            f"envs.env_name: Verlog has no environment {original!r}. Known: {', '.join(EPISODE_TURNS)}."
        )
    found.put("environment.name", name)
    # Verlog's own success: the rewards of an episode add up to more than 0.
    found.put("environment.success", "total_reward")
    task = task.rpartition("/")[2] if task.startswith(("BabyAI-MixedTrainLocal-v0/", "env/")) else task
    if task != "default":
        found.put("environment.task", task)
    captioner = str(given["envs.captioner.type"])
    found.put("agent.prompt", "cot_actions" if (captioner, name) == ("cot", "babaisai") else captioner)
    kwargs = f"envs.{original}_kwargs"
    turns = given.get(f"{kwargs}.max_episode_steps", given.get(f"{kwargs}.max_steps", EPISODE_TURNS.get(original)))
    if turns is not None:
        found.put("agent.maxTurns", turns)


def _put_critic(found: Conversion, given: Mapping[str, object]) -> None:
    highlighted = given[f"{CRITIC}.highlight_first"] is True
    weight = given.get(f"{CRITIC}.highlight_ratio", 5.0) if highlighted else 1.0
    found.put("algorithm.firstTokenValueWeight", weight)
    model = f"{CRITIC}.model.path"
    if model in given and given[model] != given.get("actor_rollout_ref.model.path"):
        found.note(model, "the critic starts from the policy's model, spec.model.path.")


def _put_kl(found: Conversion, given: Mapping[str, object]) -> None:
    if given["algorithm.use_kl_in_reward"] is not True:
        found.put("algorithm.kl.coefficient", 0)
        return
    names = {"kl_coef": "coefficient", "type": "type", "target_kl": "target", "horizon": "horizon"}
    for name, field in names.items():
        if (value := given.get(f"algorithm.kl_ctrl.{name}")) is not None:
            found.put(f"algorithm.kl.{field}", value)


def _put_schedule(found: Conversion, given: Mapping[str, object], steps: int | None) -> None:
    if given.get(f"{TRAINER}.val_only") is True:
        steps = 0
    if steps is None:
        total = min(_number(given, "total_training_steps", 10**9), _number(given, "total_epochs", 30))
        # The first iterations train the critic alone; a job counts the others.
        steps = max(1, total - _number(given, "critic_warmup_step", 0))
    found.put("training.steps", steps)
    save, test = _number(given, "save_freq", -1), _number(given, "test_freq", -1)
    found.put("training.checkpointEvery", save if 0 < save <= steps else max(1, steps))
    if test > 0:
        found.put("training.validation.every", test)
        found.put("training.validation.episodes", given["envs.n_rollouts"])
    if given.get(f"{TRAINER}.render") is True:
        found.put("training.validation.renderEpisodes", given["envs.n_rollouts"])


def _number(given: Mapping[str, object], name: str, default: int) -> int:
    value = given.get(f"{TRAINER}.{name}", default)
    if not isinstance(value, int):
        raise SettingsError(f"{TRAINER}.{name} ({value!r}) must be a whole number.")
    return value

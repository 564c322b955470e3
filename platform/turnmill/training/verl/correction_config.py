"""verl's settings of off-policy correction."""

from omegaconf import DictConfig, OmegaConf

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.rollout_correction import Level
from turnmill.jobs.verl_settings import VerlSettings, setting

REJECTIONS = {"none": None, "token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
BYPASS = "algorithm.rollout_correction.bypass_mode"
LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"


def correction_settings(job: AgentTrainingJob) -> VerlSettings:
    """Return the settings of the correction, by verl's dotted names."""
    given, prefix = job.spec.reinforcement.rollout_correction, "algorithm.rollout_correction"
    level, lower = _importance_sampling(job), given.lower_threshold
    # verl's bounds of rejection are those of the inverse ratio: engine over trainer.
    bounds = f"{1 / given.rejection_high}_{1 / given.rejection_low}"
    return {
        f"{prefix}.rollout_is": None if level == "none" else level,
        f"{prefix}.rollout_is_threshold": given.threshold if lower is None else f"{lower}_{given.threshold}",
        f"{prefix}.rollout_is_batch_normalize": given.normalise,
        f"{prefix}.rollout_rs": REJECTIONS[given.rejection],
        f"{prefix}.rollout_rs_threshold": None if given.rejection == "none" else bounds,
        BYPASS: given.bypass,
    }


def refuse_ignored_correction(config: DictConfig) -> None:
    """Raise SettingsError if `spec.verl` keeps verl from applying the correction that the job asks for."""
    if not is_corrected(config.algorithm.rollout_correction):
        return
    for name, ignores in ((BYPASS, True), (LOG_PROBS, False), (LOSS, "bypass_mode")):
        if (value := OmegaConf.select(config, name)) == ignores:
            raise SettingsError(
                f"spec.verl.{name} ({value!r}) ignores spec.algorithm.rolloutCorrection. Take it out, or set "
                "importanceSampling and rejection to none there."
            )


def is_corrected(settings: DictConfig) -> bool:
    """Return True if verl's settings `algorithm.rollout_correction` ask for weights or for rejection."""
    return settings.rollout_is is not None or settings.rollout_rs is not None


def _importance_sampling(job: AgentTrainingJob) -> Level:
    """Return the level of the weights; left out, it depends on the mode and on whether there are log-probs."""
    spec = job.spec
    given: Level | None = spec.reinforcement.rollout_correction.importance_sampling
    if given is not None:
        return given
    bypasses = spec.reinforcement.rollout_correction.bypass or setting(spec.verl, BYPASS, False)
    has_log_probs = getattr(spec.agent, "logprobs", True) and setting(spec.verl, LOG_PROBS, True)
    return "none" if spec.training.mode == "sync" or bypasses or not has_log_probs else "token"

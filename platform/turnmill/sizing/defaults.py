"""Settings of GPUs' memory that a job leaves out: the first of the usual ones with which the model fits.

Tried in this order: all weights on the GPUs and micro-batches of 16,384 tokens; then shorter micro-batches, then
offloading. For each, engines of one GPU with half of its memory; then other shares, then more GPUs for each engine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from pydantic.alias_generators import to_camel

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.verl_settings import setting
from turnmill.sizing.memory import Estimate, Limits, estimate, gpu_gib
from turnmill.sizing.model import Model
from turnmill.training.verl.attention import MICRO_BATCH_TOKENS
from turnmill.training.verl.config import build_verl_config
from turnmill.training.verl.resource_config import ACTOR, ROLLOUT, longest_row, resource_settings

SPARE = 0.95
"""Share of a GPU's memory that is planned with where possible: estimates are right to a few per cent."""

COMFORTABLE_ROWS = 32
"""Rows of the greatest length for which an engine's cache should have room."""

LIMITS = (
    Limits(learning=SPARE, rollout=SPARE, rows=COMFORTABLE_ROWS),
    Limits(rollout=SPARE, rows=COMFORTABLE_ROWS),
    Limits(rollout=SPARE),
    Limits(),
)
"""Tried one after the other, until something fits."""

OFFLOADS = ("none", "optimizer", "all")
MEMORY_SHARES = (0.5, 0.6, 0.7, 0.4, 0.3)

# Field of the job, and verl's setting for it.
_OFFLOAD = ("train.offload", f"{ACTOR}.fsdp_config.optimizer_offload")
_TOKENS = ("train.micro_batch_tokens", f"{ACTOR}.ppo_max_token_len_per_gpu")
_PARALLEL = ("rollout.tensor_parallel", f"{ROLLOUT}.tensor_model_parallel_size")
_SHARE = ("rollout.gpu_memory_share", f"{ROLLOUT}.gpu_memory_utilization")

Values = Mapping[str, Any]
"""Fields of `spec.resources`, by their Python names."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting that the job leaves out, and why it has this value."""

    field: str
    value: object
    because: str


@dataclass(frozen=True, slots=True)
class Completed:
    """A job with every setting of GPUs' memory, the settings that were chosen, and what GPUs then hold."""

    job: AgentTrainingJob
    choices: tuple[Choice, ...]
    estimate: Estimate
    sizes: Mapping[str, float | None]
    """Memory of the GPUs in GiB by section of the job; None if not known."""


def gpu_sizes(
    job: AgentTrainingJob, *, gpu_memory: float | None = None, present: str | None = None
) -> Mapping[str, float | None]:
    """Return the memory of a job's GPUs in GiB by section of the job; None if it is not known."""
    train, rollout = job.spec.resources.train, job.spec.resources.rollout
    return {
        "spec.resources.train": gpu_gib(train.accelerator or present, gpu_memory),
        "spec.resources.rollout": gpu_gib(rollout.accelerator or present, gpu_memory),
    }


def complete(
    job: AgentTrainingJob, model: Model, folder: Path, *, gpu_memory: float | None = None, present: str | None = None
) -> Completed:
    """Return a job for GPUs with the settings that it leaves out; where the GPU's memory is not known, it stays.

    Memory is `gpu_memory` in GiB, or that of the job's accelerators, or of the one that is `present`. If nothing fits,
    the job has the settings that take least.
    """
    sizes = gpu_sizes(job, gpu_memory=gpu_memory, present=present)
    search = _Search(job, model, folder, sizes)
    if sizes["spec.resources.train"] is None:
        return Completed(job, (), search.estimate({}), sizes)
    chosen, limits = search.first_fit()
    choices = tuple(
        Choice(_path(field), value, search.reason(field, chosen, limits)) for field, value in chosen.items()
    )
    return Completed(with_values(job, chosen), choices, search.estimate(chosen), sizes)


class _Search:
    """Tries settings of one job."""

    def __init__(self, job: AgentTrainingJob, model: Model, folder: Path, sizes: Mapping[str, float | None]) -> None:
        self._job, self._model, self._sizes = job, model, sizes
        self._config: DictConfig = build_verl_config(job, model=folder, run_dir=Path("run"), device="cuda")
        self._is_hybrid = bool(self._config.actor_rollout_ref.hybrid_engine)
        self._usual = {field: values[0] for field, values in self._choices()}
        self._estimates: dict[tuple[tuple[str, object], ...], Estimate] = {}

    def first_fit(self) -> tuple[dict[str, object], Limits | None]:
        """Return the first settings that fit and the limits that they keep; those that take least if nothing fits."""
        trials = list(self._trials())
        # The less is on the GPUs and the shorter the micro-batches, the less learning takes. If nothing fits with the
        # least of both, the others need no try: an estimate for another micro-batch takes seconds.
        takes_least = {field: trials[-1].get(field) for field in (_OFFLOAD[0], _TOKENS[0])}
        least = [each for each in trials if all(each.get(field) == value for field, value in takes_least.items())]
        if all(LIMITS[-1].lack(self.estimate(each), self._sizes) for each in least):
            return trials[-1], None
        for limits in LIMITS:
            for values in trials:
                if limits.lack(self.estimate(values), self._sizes) is None:
                    return values, limits
        return trials[-1], None

    def reason(self, field: str, chosen: Values, limits: Limits | None) -> str:
        """Return why a field has its value: what would not fit with the usual one."""
        usual = self._usual[field]
        if limits is None:
            return "nothing fits"
        if chosen[field] == usual:
            return "the usual value, which fits"
        missing = limits.lack(self.estimate({**chosen, field: usual}), self._sizes)
        return f"with {usual}, {missing or 'other settings would not fit'}"

    def estimate(self, values: Values) -> Estimate:
        """Return what GPUs hold with some values."""
        key = tuple(values.items())
        if key not in self._estimates:
            self._estimates[key] = self._estimate(values)
        return self._estimates[key]

    def _estimate(self, values: Values) -> Estimate:
        settings = resource_settings(with_values(self._job, values), "cuda") | dict(self._job.spec.verl)
        with open_dict(self._config):
            for name, value in settings.items():
                OmegaConf.update(self._config, name, value, merge=True)
        return estimate(
            self._config,
            self._model,
            train_gib=self._sizes["spec.resources.train"],
            rollout_gib=self._sizes["spec.resources.rollout"],
        )

    def _trials(self) -> Iterator[dict[str, object]]:
        trials: list[dict[str, object]] = [{}]
        for field, values in self._choices():
            trials = [{**trial, field: value} for trial in trials for value in values]
        yield from trials

    def _choices(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        """Yield the fields that the job leaves out with their values, the field that should change last first."""
        for (field, name), values in (
            (_OFFLOAD, OFFLOADS),
            (_TOKENS, self._micro_batches()),
            (_PARALLEL, self._parallel_sizes()),
            (_SHARE, MEMORY_SHARES),
        ):
            if field in {_PARALLEL[0], _SHARE[0]} and not self._is_hybrid:
                # The number of the engines' GPUs is known before the model is.
                continue
            section, _, attribute = field.partition(".")
            is_given = getattr(getattr(self._job.spec.resources, section), attribute) is not None
            if not is_given and setting(self._job.spec.verl, name, None) is None:
                yield field, values

    def _micro_batches(self) -> tuple[int, ...]:
        longest = longest_row(self._config)
        sizes = [max(MICRO_BATCH_TOKENS, longest)]
        while sizes[-1] > longest:
            sizes.append(max(longest, sizes[-1] // 2))
        return tuple(sizes)

    def _parallel_sizes(self) -> tuple[int, ...]:
        gpus, heads = self._job.spec.resources.train.gpus_per_node, self._model.key_value_heads
        return tuple(size for size in (1, 2, 4, 8) if gpus % size == 0 and heads % size == 0)


def with_values(job: AgentTrainingJob, values: Values) -> AgentTrainingJob:
    """Return a job with other values in `spec.resources`."""
    resources = job.spec.resources
    for field, value in values.items():
        section, _, attribute = field.partition(".")
        changed = getattr(resources, section).model_copy(update={attribute: value})
        resources = resources.model_copy(update={section: changed})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"resources": resources})})


def _path(field: str) -> str:
    section, _, attribute = field.partition(".")
    return f"spec.resources.{section}.{to_camel(attribute)}"

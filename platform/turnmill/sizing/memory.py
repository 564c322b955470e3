"""Estimate of what each GPU of a job holds, while the policy learns and while it rolls out."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from turnmill.core.errors import SettingsError
from turnmill.sizing.model import BF16, FLOAT32, Model, Parameters
from turnmill.sizing.placement import has_reference

GIB = 2**30
GPU_GIB: Mapping[str, float] = {
    "A10G": 22.5, "A40": 45.0, "A100": 80.0, "A100-40G": 40.0, "A100-80G": 80.0, "B200": 178.4, "H20": 95.6,
    "H100": 79.6, "H200": 140.4, "L4": 22.5, "L40S": 45.0,
}  # fmt: skip
"""Memory of a GPU in GiB as its driver reports it, by Ray's name of the accelerator."""

RESERVED_GIB = 2.0
"""CUDA's context, NCCL's buffers, and what the allocator cannot use."""

GRAPHS_GIB = 1.0
"""vLLM's CUDA graphs."""

ROLLOUT = "rollout"
"""Name of the phase in which engines generate."""

# FSDP gathers the next layer while it computes with the present one.
_GATHERED_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Part:
    """Something that a GPU holds."""

    name: str
    gib: float


@dataclass(frozen=True, slots=True)
class Phase:
    """What a GPU holds at the same time."""

    name: str
    field: str
    """Section of the job that asks for the GPU."""

    parts: tuple[Part, ...]
    way_out: str

    @property
    def gib(self) -> float:
        """The sum."""
        return sum(part.gib for part in self.parts)


@dataclass(frozen=True, slots=True)
class Cache:
    """The engine's cache of keys and values."""

    gib: float
    tokens: int
    longest_row: int

    @property
    def rows(self) -> int:
        """Rows of the greatest length that fit at once."""
        return self.tokens // self.longest_row


@dataclass(frozen=True, slots=True)
class Estimate:
    """Phases of a GPU's memory, and the engine's cache; None if the size of its GPU is not known."""

    phases: tuple[Phase, ...]
    cache: Cache | None
    host_gib: float
    """Memory of each training machine for what is not on its GPUs."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A model that learns: its parameters, and the settings of verl's FSDP engine."""

    name: str
    parameters: Parameters
    activation_bytes: int
    fsdp: DictConfig
    ranks: int
    """All training processes."""

    has_adapters: bool = False
    logits_bytes: int = 0
    """Of a whole micro-batch; 0 if they are computed in chunks."""

    def resident(self) -> list[Part]:
        """What stays on the GPU outside of the model's own update."""
        return [part for part, is_offloaded in self._states() if not is_offloaded]

    def learning(self) -> list[Part]:
        """What the model's own update adds."""
        of_layer, gathered = self.parameters.per_layer, _GATHERED_LAYERS * self.parameters.per_layer
        return [
            *self._gradients_and_returned(),
            self._part("gathered layers in bfloat16", (self.parameters.outside_layers + gathered) * BF16),
            self._part("gradients of a layer, not yet sharded", 0 if self.has_adapters else of_layer * FLOAT32),
            self._part("activations of a micro-batch", self.activation_bytes),
            *([self._part("logits of a micro-batch", self.logits_bytes)] if self.logits_bytes else []),
        ]

    def updating(self) -> list[Part]:
        """What the optimizer's step adds, after the activations are gone: square roots of Adam's second moments."""
        return [
            *self._gradients_and_returned(),
            self._part("Adam's intermediate results", 0 if self.has_adapters else self._sharded(FLOAT32)),
        ]

    def _gradients_and_returned(self) -> list[Part]:
        """What is on the GPU from the first gradient to the optimizer's step: gradients, and states that were away."""
        if self.fsdp.get("offload_policy"):
            return []
        gradients = self._part("gradients", 0 if self.has_adapters else self._sharded(FLOAT32))
        return [*(part for part, is_offloaded in self._states() if is_offloaded), gradients]

    def host_gib(self, ranks_per_machine: int) -> float:
        """Memory of a machine for what waits there."""
        return sum(part.gib for part, is_offloaded in self._states() if is_offloaded) * ranks_per_machine

    def _states(self) -> Iterator[tuple[Part, bool]]:
        """Yield what outlasts an update, and whether it waits in the machine's memory between updates."""
        all_offloaded = bool(self.fsdp.get("offload_policy"))
        moments = 0 if self.has_adapters else self._sharded(2 * FLOAT32)
        yield self._part("weights in float32", self._sharded(FLOAT32)), all_offloaded or bool(self.fsdp.param_offload)
        yield self._part("Adam's moments", moments), all_offloaded or bool(self.fsdp.optimizer_offload)

    def _sharded(self, bytes_each: int) -> float:
        size = self.fsdp.get("fsdp_size", -1)
        return self.parameters.total * bytes_each / (size if 0 < size < self.ranks else self.ranks)

    def _part(self, name: str, num_bytes: float) -> Part:
        return Part(f"{self.name}: {name}", num_bytes / GIB)


def estimate(config: DictConfig, model: Model, *, train_gib: float | None, rollout_gib: float | None) -> Estimate:
    """Return what each GPU holds with verl's configuration of a job for GPUs; sizes of GPUs are None if not known."""
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    trained = [_policy(config, model, ranks)]
    if config.critic.enable:
        trained.append(_critic(config, model, ranks))
    resident = [part for each in trained for part in each.resident()]
    reserved = Part("CUDA, NCCL, fragmentation", RESERVED_GIB)
    phases = []
    for each in trained:
        # Whichever takes more: activations or the optimizer's step.
        own = max(each.learning(), each.updating(), key=lambda parts: sum(part.gib for part in parts))
        phases.append(
            Phase(
                f"learning ({each.name})",
                "spec.resources.train",
                (*resident, *own, reserved),
                "Train on more GPUs, lower spec.resources.train.microBatchTokens (not below the longest row), or set "
                "spec.resources.train.offload.",
            )
        )
    engine, cache = _engine(config, model, train_gib if config.actor_rollout_ref.hybrid_engine else rollout_gib)
    if config.actor_rollout_ref.hybrid_engine:
        phases.append(
            Phase(
                ROLLOUT,
                "spec.resources.train",
                (*resident, *engine, reserved),
                "Lower spec.resources.rollout.gpuMemoryShare, train on more GPUs, or set spec.resources.train.offload.",
            )
        )
    else:
        phases.append(
            Phase(
                ROLLOUT,
                "spec.resources.rollout",
                engine,
                "Raise spec.resources.rollout.tensorParallel, or ask for a larger GPU.",
            )
        )
    machine = config.trainer.n_gpus_per_node
    host = sum(each.host_gib(machine) for each in trained)
    if has_reference(config) and not trained[0].has_adapters:
        # verl keeps the reference's shards in the machine's memory, and copies a layer at a time.
        host += trained[0].parameters.total * FLOAT32 / ranks / GIB * machine
    return Estimate(tuple(phases), cache, host)


@dataclass(frozen=True, slots=True)
class Limits:
    """Shares of a GPU's memory that may be planned with, and rows for which the engine's cache must have room."""

    learning: float = 1.0
    rollout: float = 1.0
    rows: int = 1

    def lack(self, found: Estimate, sizes: Mapping[str, float | None]) -> str | None:
        """Return what does not fit, or None; `sizes` are GPUs in GiB by section of the job."""
        for phase in found.phases:
            size, share = sizes[phase.field], self.rollout if phase.name == ROLLOUT else self.learning
            if size is not None and phase.gib > share * size:
                return f"{phase.name} would take {phase.gib:.1f} of {size:.1f} GiB"
        if found.cache is not None and found.cache.rows < self.rows:
            return f"the engine's cache would hold {found.cache.rows} of the longest rows"
        return None


def require_fit(found: Estimate, sizes: Mapping[str, float | None]) -> None:
    """Raise SettingsError if a phase needs more than its GPU has; `sizes` are GPUs in GiB by section of the job."""
    for phase in found.phases:
        size = sizes[phase.field]
        if size is not None and phase.gib > size:
            largest = max(phase.parts, key=lambda part: part.gib)
            raise SettingsError(
                f"{phase.field}: {phase.name} takes {phase.gib:.1f} GiB on each GPU, which has {size:.1f} GiB; "
                f"{largest.gib:.1f} GiB of it are '{largest.name}'. {phase.way_out}"
            )
    if found.cache is not None and found.cache.rows < 1:
        raise SettingsError(
            f"The engine's cache has room for {found.cache.tokens} tokens, and a row has up to "
            f"{found.cache.longest_row}: {found.phases[-1].way_out}"
        )


def _policy(config: DictConfig, model: Model, ranks: int) -> Trained:
    policy = config.actor_rollout_ref
    tokens = policy.actor.ppo_max_token_len_per_gpu
    # In bfloat16, in float32, and the gradient of either.
    logits = 0 if policy.model.use_fused_kernels else tokens * model.text.vocab_size * 2 * (BF16 + FLOAT32)
    return Trained(
        "policy",
        model.parameters(),
        model.activation_bytes(tokens, has_mask=_has_mask(policy.model)),
        policy.actor.fsdp_config,
        ranks,
        has_adapters=bool(policy.model.get("lora_rank")),
        logits_bytes=logits,
    )


def _critic(config: DictConfig, model: Model, ranks: int) -> Trained:
    tokens = config.critic.ppo_max_token_len_per_gpu
    return Trained(
        "critic",
        model.parameters(is_critic=True),
        model.activation_bytes(tokens, is_critic=True, has_mask=_has_mask(config.critic.model)),
        config.critic.fsdp,
        ranks,
    )


def _has_mask(model: DictConfig) -> bool:
    return bool(OmegaConf.select(model, "override_config.attn_implementation") == "sdpa")


def _engine(config: DictConfig, model: Model, gpu_gib: float | None) -> tuple[tuple[Part, ...], Cache | None]:
    """Return what an engine holds on each of its GPUs, and its cache if the GPU's size is known."""
    rollout = config.actor_rollout_ref.rollout
    parallel = rollout.tensor_model_parallel_size
    weights = model.parameters().total * BF16 / parallel / GIB
    text = model.text
    widest = max(int(getattr(text, "intermediate_size", 0) or 0), int(text.hidden_size))
    batched, sequences = rollout.max_num_batched_tokens, rollout.max_num_seqs
    # A layer's input, its widest intermediate result twice, and logits with a copy in float32.
    working = (
        batched * (2 * text.hidden_size + 2 * widest / parallel) * BF16 + sequences * text.vocab_size * 2 * FLOAT32
    )
    parts = [
        Part("engine: weights in bfloat16", weights),
        Part("engine: batch and CUDA graphs", working / GIB + GRAPHS_GIB),
    ]
    if gpu_gib is None:
        return tuple(parts), None
    left = rollout.gpu_memory_utilization * gpu_gib - sum(part.gib for part in parts)
    tokens = max(0, math.floor(left * GIB * parallel / model.key_value_bytes))
    parts.append(Part("engine: cache of keys and values", max(left, 0.0)))
    return tuple(parts), Cache(left, tokens, rollout.max_model_len)


def gpu_gib(accelerator: str | None, given: float | None) -> float | None:
    """Return the memory of a GPU in GiB: as given, or by the name of the accelerator; None if neither is known."""
    return given if given is not None else GPU_GIB.get(accelerator or "")

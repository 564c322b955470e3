"""Rules of `resources.train.engine: megatron`, and of the sizes that only Megatron has."""

from turnmill.jobs.rule import Rule
from turnmill.jobs.values import Values

_TRAIN = "resources.train"
_SIZES = ("tensorParallel", "pipelineParallel", "contextParallel", "expertParallel")
_CEL = f"self.{_TRAIN}"
_MEGATRON, _FSDP = ((f"{_TRAIN}.engine", "megatron"),), ((f"{_TRAIN}.engine", "fsdp"),)


def _of(values: Values, name: str) -> int:
    return int(values[f"spec.{_TRAIN}.{name}"])


def _copies(values: Values) -> bool:
    """Return whether the GPUs hold whole copies of the model, and of a mixture's experts."""
    gpus = _of(values, "nodes") * _of(values, "gpusPerNode")
    tensor, pipeline, context, expert = (_of(values, name) for name in _SIZES)
    return gpus % (tensor * pipeline * context) == 0 and gpus % (tensor * pipeline * expert) == 0


_GPUS = f"{_CEL}.nodes * {_CEL}.gpusPerNode"
_PER_COPY = f"{_CEL}.tensorParallel * {_CEL}.pipelineParallel"

MEGATRON_RULES = (
    *(
        Rule(
            path=f"{_TRAIN}.{name}",
            holds=lambda v, name=name: _of(v, name) == 1,  # type: ignore[misc]
            cel=f"{_CEL}.{name} == 1",
            sentence=f"is for spec.{_TRAIN}.engine megatron: fsdp shards a model over all GPUs",
            way_out=lambda v: f"Leave it out, or set spec.{_TRAIN}.engine to megatron.",
            only=_FSDP,
        )
        for name in _SIZES
    ),
    Rule(
        path=f"{_TRAIN}.sequenceParallel",
        holds=lambda v: _of(v, "sequenceParallel") == 1,
        cel=f"{_CEL}.sequenceParallel == 1",
        sentence=f"is for spec.{_TRAIN}.engine fsdp: Megatron shares long rows in its own way",
        way_out=lambda v: f"Leave it out, and set spec.{_TRAIN}.contextParallel.",
        only=_MEGATRON,
    ),
    Rule(
        path=f"{_TRAIN}.tensorParallel",
        holds=_copies,
        cel=f"({_GPUS}) % ({_PER_COPY} * {_CEL}.contextParallel) == 0 && "
        f"({_GPUS}) % ({_PER_COPY} * {_CEL}.expertParallel) == 0",
        sentence="times pipelineParallel, and contextParallel or expertParallel, must divide the GPUs of "
        f"spec.{_TRAIN}: they hold whole copies of the model",
        way_out=lambda v: "Try sizes whose product is the number of GPUs, or a part of it such as half.",
        only=_MEGATRON,
    ),
    Rule(
        path="model.lora",
        holds=lambda v: v["spec.model.lora"] is None,
        cel="!has(self.model.lora)",
        sentence=f"must be left out with spec.{_TRAIN}.engine megatron: adapters are trained by fsdp alone",
        way_out=lambda v: f"Take it out, or set spec.{_TRAIN}.engine to fsdp.",
        only=_MEGATRON,
    ),
    Rule(
        path=f"{_TRAIN}.engine",
        holds=lambda v: v["spec.resources.device"] != "cpu",
        cel="self.resources.device != 'cpu'",
        sentence="must be fsdp with spec.resources.device cpu: Megatron needs GPUs",
        way_out=lambda v: "Leave it out, or set spec.resources.device to cuda.",
        only=_MEGATRON,
    ),
)

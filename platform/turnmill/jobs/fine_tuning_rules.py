"""Rules of fine-tuning, in Python for the job file and in CEL for the API server."""

from collections.abc import Iterator

from turnmill.jobs.rule import Rule
from turnmill.jobs.values import Values

_SFT = (("algorithm.type", "sft"),)


def fine_tunes(values: Values) -> bool:
    """Return whether a job only fine-tunes its model, without agent and environment."""
    return bool(values["spec.algorithm.type"] == "sft")


def _processes(values: Values) -> int:
    return int(values["spec.resources.train.nodes"] * values["spec.resources.train.gpusPerNode"])


def _section_rules(path: str, when: str, only: tuple[tuple[str, str], ...]) -> Iterator[Rule]:
    """Yield the rules of a section of fine-tuning; `when` is, in CEL, the condition that there is none."""

    def absent(values: Values) -> bool:
        return values[f"spec.{path}"] is None

    cel = f"self.{path}"
    processes = "self.resources.train.nodes * self.resources.train.gpusPerNode"
    yield Rule(
        path=path,
        holds=lambda v: absent(v) or (v[f"spec.{path}.data"] is None) != (v[f"spec.{path}.fromRun"] is None),
        cel=f"{when}has({cel}.data) != has({cel}.fromRun)",
        sentence="needs exactly one of data and fromRun: rows are conversations of a file or trajectories of a run",
        way_out=lambda v: (
            "Give a .jsonl or .parquet file as data, or the folder of a run as fromRun."
            if v[f"spec.{path}.data"] is None
            else "Take one of them out."
        ),
        only=only,
    )
    yield Rule(
        path=f"{path}.batchSize",
        holds=lambda v: absent(v) or v[f"spec.{path}.batchSize"] % _processes(v) == 0,
        cel=f"{when}(has({cel}.batchSize) ? {cel}.batchSize : 32) % ({processes}) == 0",
        sentence="must be a multiple of spec.resources.train.nodes ({resources.train.nodes}) times gpusPerNode "
        "({resources.train.gpusPerNode}): all training processes take the same number of rows",
        way_out=lambda v: f"Try {-(-v[f'spec.{path}.batchSize'] // _processes(v)) * _processes(v)}.",
        only=only,
    )


FINE_TUNING_RULES = (
    *_section_rules("algorithm", "", _SFT),
    *_section_rules("model.fineTune", "!has(self.model.fineTune) || ", ()),
    Rule(
        path="training.mode",
        holds=lambda v: v["spec.training.mode"] == "sync",
        cel="self.training.mode == 'sync'",
        sentence="must be sync with spec.algorithm.type sft: there is no rollout to overlap with",
        way_out=lambda v: "Leave it out.",
        only=_SFT,
    ),
    Rule(
        path="training.steps",
        holds=lambda v: v["spec.training.steps"] > 0 or v["spec.algorithm.validationData"] is not None,
        cel="self.training.steps > 0 || has(self.algorithm.validationData)",
        sentence="must be more than 0 with spec.algorithm.type sft, or there must be validationData: "
        "otherwise nothing is done",
        way_out=lambda v: "Try 100.",
        only=_SFT,
    ),
    Rule(
        path="model.fineTune",
        holds=lambda v: v["spec.model.fineTune"] is None,
        cel="!has(self.model.fineTune)",
        sentence="must be left out with spec.algorithm.type sft, which fine-tunes itself",
        way_out=lambda v: "Take it out.",
        only=_SFT,
    ),
    Rule(
        path="resources.train.engine",
        holds=lambda v: (
            v["spec.resources.train.engine"] == "fsdp" or (not fine_tunes(v) and v["spec.model.fineTune"] is None)
        ),
        cel="self.resources.train.engine == 'fsdp' || (self.algorithm.type != 'sft' && !has(self.model.fineTune))",
        sentence="must be fsdp with spec.algorithm.type sft and with spec.model.fineTune: Megatron cannot fine-tune",
        way_out=lambda v: "Leave it out.",
    ),
)

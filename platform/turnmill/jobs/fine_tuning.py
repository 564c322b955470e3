"""Settings of supervised fine-tuning: as an algorithm of its own, and of a model before its training."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from turnmill.jobs.rule import Rule
from turnmill.jobs.settings import FilePath, Seed, Settings, TypedSection
from turnmill.jobs.trajectory_algorithms import AdamBetas, KlSettings
from turnmill.jobs.values import Values


class FineTuningSettings(Settings):
    """What is learned from, and how: the same for every use of fine-tuning."""

    data: FilePath | None = None
    """File of conversations, `.jsonl` or `.parquet`: `messages` in each row and, if there are any, `tools`."""

    from_run: FilePath | None = None
    """Folder of an earlier run, in place of `data`: the trajectories of its training are learned from, token by token.
    Its model must have the same vocabulary."""

    min_reward: float = Field(default=1.0, ge=-1_000_000, le=1_000_000)
    """Reward that a trajectory of `fromRun` must have at least."""

    max_length: int = Field(default=4096, ge=2, le=10_000_000)
    """Tokens of a row; longer ones are left out."""

    batch_size: int = Field(default=32, ge=1, le=1_000_000)
    """Rows per update of the weights."""

    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Learning rate of the fine-tuning."""

    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of the learning rates until the last step; `cosine` falls to 0."""

    weight_decay: float = Field(default=0.01, ge=0, le=10)
    """Weight decay of the optimizer."""

    adam_betas: AdamBetas = (0.9, 0.999)
    """Decay rates of the optimizer's averages (AdamW) of gradients and of their squares."""

    gradient_clip: float = Field(default=1.0, gt=0, le=1_000_000)
    """Maximum norm of the gradients."""

    @property
    def source(self) -> str:
        """What is learned from, in a few words."""
        return self.data or f"trajectories of {self.from_run}"


class FineTune(FineTuningSettings):
    """Fine-tune the model before the training, once; later runs with the same settings and data use it again."""

    epochs: int = Field(default=1, ge=1, le=100)
    """Passes over the rows."""

    seed: Seed = 0
    """Seed of the order of rows, and of new adapters' weights."""


class Sft(FineTuningSettings, TypedSection):
    """Supervised fine-tuning: the model learns the answers of given conversations, without agent and environment."""

    implementation = "turnmill.training.sft.trainer:SftTrainer"
    learns_from_turns: ClassVar[bool] = False

    type: Literal["sft"] = "sft"
    """`sft`: supervised fine-tuning on conversations or on trajectories of an earlier run."""

    validation_data: FilePath | None = None
    """File of conversations like `data`, whose mean loss is measured before the first step, every
    `training.validation.every` steps and after the last."""

    epochs: int | None = Field(default=None, ge=1, le=100)
    """Passes over the rows, after which the run ends even if `training.steps` is larger; left out, as many as the steps
    take."""

    @property
    def kl(self) -> KlSettings:
        """No KL penalty."""
        return KlSettings(coefficient=0.0)


_SFT = (("algorithm.type", "sft"),)


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
            v["spec.resources.train.engine"] == "fsdp"
            or (v["spec.algorithm.type"] != "sft" and v["spec.model.fineTune"] is None)
        ),
        cel="self.resources.train.engine == 'fsdp' || (self.algorithm.type != 'sft' && !has(self.model.fineTune))",
        sentence="must be fsdp with spec.algorithm.type sft and with spec.model.fineTune: Megatron cannot fine-tune",
        way_out=lambda v: "Leave it out.",
    ),
)

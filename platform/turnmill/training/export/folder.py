"""An exported folder, which exists as a whole or not at all."""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.hub import is_hub_name, local_folder
from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder
from turnmill.training import checkpoints
from turnmill.training.export.card import model_card
from turnmill.training.export.model import LoraForm, files_beside_weights, has_adapters, load_model, merge_adapters
from turnmill.training.verl.whole_weights import holds_weights

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_CARD = "README.md"
_MAX_REASON = 300
_OF_WEIGHTS = {"config.json"}
"""Files that are written with the weights, not copied from the checkpoint."""


@dataclass(frozen=True, slots=True)
class Export:
    """What was exported."""

    folder: Path
    step: int
    dtype: str
    is_adapter: bool


def export(
    job: AgentTrainingJob,
    run_dir: Path,
    output: Path,
    *,
    step: int | None = None,
    lora: LoraForm = "merged",
    dtype: Dtype | None = None,
    on_file: Callable[[], None] = lambda: None,
) -> Export:
    """Write the policy of a checkpoint as a model of Hugging Face's format.

    `step` chooses the checkpoint, by default the newest that is undamaged. `dtype` is by default that of the model
    with which the run began. Raises SettingsError, and leaves no folder, if that is not possible.
    """
    _refuse_taken(output)
    if lora == "adapter":
        _refuse_adapter(job)
    found = checkpoints.choose(RunFolder(run_dir).checkpoints, step, on_file, run=checkpoints.run_of(job))
    actor = found.path / "actor"
    if not holds_weights(actor):
        raise SettingsError(
            f"{actor} has no weights that an FSDP engine has saved. Those of Megatron are converted by verl: "
            f"`python -m verl.model_merger merge --backend megatron --local_dir {actor} --target_dir {output}`."
        )
    chosen = dtype or _initial_dtype(job)
    with _readable(found.path):
        model = load_model(actor, trust_remote_code=_trusts_code(job))
    is_adapter = lora == "adapter" and has_adapters(model)
    if has_adapters(model) and not is_adapter:
        model = merge_adapters(model, actor)
    with _whole(output) as folder:
        _write(model.to(DTYPES[chosen]), files_beside_weights(actor), folder, job)
        architecture = (model.config.architectures or [""])[0]
        card = model_card(
            job, run_dir, found.state.step, architecture=architecture, is_adapter=is_adapter, dtype=chosen
        )
        (folder / _CARD).write_text(card, encoding="utf-8")
    return Export(output, found.state.step, chosen, is_adapter)


def _refuse_taken(output: Path) -> None:
    try:
        taken = output.is_symlink() or (output.exists() and (not output.is_dir() or any(output.iterdir())))
    except OSError as error:
        raise _unwritable(output, error) from error
    if taken:
        raise SettingsError(f"--output {output} is not an empty folder: a model needs one of its own. Choose another.")


def _refuse_adapter(job: AgentTrainingJob) -> None:
    if job.spec.model.lora is None:
        raise SettingsError(
            "--lora adapter: the run has no spec.model.lora, and trained all weights of its model. Omit --lora."
        )
    if job.spec.model.path is None:
        raise SettingsError(
            "--lora adapter: the run's own model was a warm start, which nobody else has: adapters would be of no use. "
            "Use --lora merged."
        )


def _trusts_code(job: AgentTrainingJob) -> bool:
    section = "model" if job.spec.fine_tuning is not None else "actor_rollout_ref.model"
    return bool(job.spec.verl.get(f"{section}.trust_remote_code", False))


def _initial_dtype(job: AgentTrainingJob) -> Dtype:
    """Return the type of the model with which the run began; float32, as it was trained, if that is not known."""
    path = job.spec.model.path
    folder = local_folder(path) if path is not None else None
    try:
        config = json.loads((folder / "config.json").read_text()) if folder else {}
        name = config.get("dtype") or config.get("torch_dtype")
    except (OSError, ValueError, AttributeError):
        name = None
    found: dict[str, Dtype] = {"bfloat16": "bfloat16", "float16": "float16"}
    return found.get(name, "float32") if isinstance(name, str) else "float32"


@contextmanager
def _readable(checkpoint: Path) -> Iterator[None]:
    """Raise SettingsError for a checkpoint that cannot be read, or that is deleted meanwhile by its run."""
    try:
        yield
    except SettingsError:
        raise
    except Exception as error:
        # Of the file system, torch, transformers or PEFT, whose classes of errors have no common base.
        reason = " ".join(str(error).split())[:_MAX_REASON] or type(error).__name__
        raise SettingsError(
            f"{checkpoint} cannot be read ({reason}). If its run goes on and has deleted it, export again; else choose "
            "another checkpoint with --step."
        ) from error


@contextmanager
def _whole(output: Path) -> Iterator[Path]:
    """Give a folder beside the output that takes its place when the block ends; an exception deletes it."""
    output = output.absolute()
    partial = output.with_name(f".{output.name}.{uuid.uuid4().hex}{atomic_files.TEMPORARY_SUFFIX}")
    try:
        partial.mkdir(parents=True)
        yield partial
        atomic_files.flush_folder(partial)
        partial.rename(output)
        atomic_files.flush(output.parent)
    except (OSError, SafetensorError) as error:
        raise _unwritable(output, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unwritable(output: Path, error: Exception) -> SettingsError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return SettingsError(
        f"--output {output} cannot be written: {reason}. Make room, or choose a folder that may be written."
    )


def _write(model: PreTrainedModel, beside: Path, folder: Path, job: AgentTrainingJob) -> None:
    """Write weights and configuration; tokenizer, chat template and the like are the checkpoint's own files."""
    # Bars for moments, between the lines of whoever exports.
    disable_progress_bar()
    if has_adapters(model):
        base = job.spec.model.path
        assert base is not None
        # For others, a relative path would lead elsewhere.
        model.peft_config["default"].base_model_name_or_path = base if is_hub_name(base) else str(Path(base).absolute())
        # PEFT would look at the base model's vocabulary, on the hub if it is not here.
        model.save_pretrained(folder, save_embedding_layers=False)
    else:
        model.save_pretrained(folder)
    # Files of safetensors are for their owner alone.
    for file in folder.glob("*.safetensors"):
        file.chmod(0o666 & ~_umask())
    for file in sorted(beside.iterdir()):
        if file.is_file() and file.name not in _OF_WEIGHTS and file.suffix != ".safetensors":
            shutil.copyfile(file, folder / file.name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""The model card of an exported model: what it was trained on, and what its run has measured."""

from pathlib import Path

import yaml

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.hub import is_hub_name
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.summary import Validation, validations, versions
from turnmill.training.export.model import loader_of


def model_card(
    job: AgentTrainingJob, run_dir: Path, step: int, *, architecture: str, is_adapter: bool, dtype: str
) -> str:
    """Return the text of `README.md`: front matter for the hub, and the facts of the run up to the step."""
    library, loader = ("peft", "AutoPeftModelForCausalLM") if is_adapter else ("transformers", loader_of(architecture))
    facts = "\n".join(f"| {name} | {value} |" for name, value in _facts(job, run_dir, step, dtype).items())
    return (
        f"---\n{yaml.safe_dump(_front_matter(job, library), sort_keys=False)}---\n\n"
        f"# {job.metadata.name}, step {step}\n\n"
        f"{'LoRA adapters' if is_adapter else 'A model'} trained with {_learning(job)} by turnmill, exported "
        f"from the checkpoint of step {step} of the run.\n\n"
        f"| fact | value |\n| --- | --- |\n{facts}\n\n"
        "Success is the share of validation episodes that were solved, with its 95 % interval (Wilson score). These "
        "episodes are none of the training's.\n\n"
        "## Use\n\n```python\n"
        f"from {library} import {loader}\nfrom transformers import AutoTokenizer\n\n"
        f'model = {loader}.from_pretrained("FOLDER")\ntokenizer = AutoTokenizer.from_pretrained("FOLDER")\n```\n'
    )


def _front_matter(job: AgentTrainingJob, library: str) -> dict[str, object]:
    """Return the metadata that the hub reads; a folder of this machine is no base model to others."""
    base = job.spec.model.path
    named = {"base_model": base} if base is not None and is_hub_name(base) else {}
    return {"library_name": library, **named, "tags": ["turnmill", _learning(job).replace(" ", "-"), "agent"]}


def _learning(job: AgentTrainingJob) -> str:
    return "reinforcement learning" if job.spec.fine_tuning is None else "supervised fine-tuning"


def _facts(job: AgentTrainingJob, run_dir: Path, step: int, dtype: str) -> dict[str, str]:
    spec, folder = job.spec, RunFolder(run_dir)
    rows = [row for row in folder.read_metrics() if row["step"] <= step]
    found = validations(rows)
    lora = spec.model.lora
    facts = {
        "trained from": spec.model.path or "a tiny model made by imitation",
        "agent": spec.agent.type,
        "environment": spec.environment_name,
        "algorithm": spec.algorithm.type,
        "mode": spec.training.mode,
        "steps": f"{step} of {spec.training.steps}",
        "turns seen": str(int(sum(row.get("turnmill/turns") or 0 for row in rows))),
        "seed": str(spec.training.seed),
        "adapters": f"LoRA of rank {lora.rank}, alpha {lora.alpha}" if lora else "none",
        "success before training": _success(next((at for at in found if at.step == 0), None)),
        "success after training": _success(next((at for at in reversed(found) if at.step > 0), None)),
        "type of the weights": dtype,
    }
    used = folder.read_summary().get("versions") or versions()
    facts["versions"] = ", ".join(f"{library} {version}" for library, version in used.items() if version)
    # A table's cell must not contain its separator, or a line break.
    return {name: value.replace("|", r"\|").replace("\n", " ") for name, value in facts.items()}


def _success(validation: Validation | None) -> str:
    if validation is None:
        return "not measured"
    interval = validation.interval
    known = (
        f" (95 % interval {interval[0]:.1%} to {interval[1]:.1%}, {validation.episodes} episodes)" if interval else ""
    )
    return f"{validation.success:.1%} at step {validation.step}{known}"

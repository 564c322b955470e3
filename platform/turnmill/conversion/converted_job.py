"""A job that is made from a verl command line, and what becomes of the settings that are no fields of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnmill.conversion.command_line import ENGINE
from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.job import API_VERSION, KIND
from turnmill.jobs.settings import Settings
from turnmill.jobs.values import fields_by_alias, sections_in, tag_of
from turnmill.training.verl.config import refused_verl_settings
from turnmill.training.verl.known_settings import FSDP, LOOK_UP, MEGATRON, NO_OTHER_ENGINE, UNKNOWN

Data = dict[str, Any]

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MULTI_TURN, LOOPS = f"{ROLLOUT}.multi_turn", f"{ROLLOUT}.agent"

READ_HERE = frozenset(
    {
        *("algorithm.adv_estimator", "algorithm.kl_ctrl.kl_coef", "algorithm.use_kl_in_reward"),
        *(f"{ACTOR}.kl_loss_coef", f"{ACTOR}.use_kl_loss", f"{MULTI_TURN}.enable", f"{ROLLOUT}.multi_turn"),
        *("custom_reward_function.name", "custom_reward_function.path", "trainer.critic_warmup"),
        *("trainer.experiment_name", "trainer.save_freq", "trainer.test_freq", "trainer.total_epochs"),
        *("trainer.val_only", f"{ROLLOUT}.name", ENGINE),
    }
)
"""Settings that are read where a job is made."""

RENAMED = {"critic.model.fsdp_config.": "critic.fsdp."}
"""Beginnings of names that verl has renamed."""

MICRO_BATCHES = re.compile(r".*(micro_batch_size(_per_gpu)?|use_dynamic_bsz)")

REMOVED: Mapping[str, str] = {
    f"{MULTI_TURN}.interaction_config_path": "verl has removed interactions; write a tool or an agent loop instead.",
    "data.sampler": "turnmill draws the tasks itself, each as often as the others; there are no curricula.",
    "data.dataloader_num_workers": "Tasks are read at the start, without a data loader.",
    "data.return_raw_chat": "Prompts are always read as messages.",
    "data.shuffle": "Tasks are always drawn in a random order, which spec.training.seed determines.",
    "trainer.remove_previous_ckpt_in_save": "Set spec.training.keepCheckpoints; the last two are kept.",
    f"{ROLLOUT}.sglang_rollout_mode": "Inference is always vLLM.",
    f"{ROLLOUT}.server": "verl has removed servers beside the run; its engines are always asynchronous.",
}
"""Settings of earlier versions of verl, and what has become of them."""


@dataclass(slots=True)
class Conversion:
    """A job's data, and a sentence on each setting that has no place in it."""

    data: Data = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, name: str, sentence: str) -> None:
        """Add a sentence on a setting."""
        self.notes.append(f"{name}: {sentence}")

    def put(self, path: str, value: object) -> None:
        """Set a field below `spec`."""
        *sections, name = path.split(".")
        node = self.data.setdefault("spec", {})
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value


def algorithms() -> dict[str, type[Settings]]:
    """Return the settings of each type of algorithm."""
    return {tag_of(section): section for section in sections_in(AlgorithmSettings)}


def new_job(given: Mapping[str, object], name: str) -> Conversion:
    """Return a job without a specification; it is named like the experiment, or by its system."""
    words = re.sub(r"[^a-z0-9]+", "-", str(given.get("trainer.experiment_name", name)).lower()).strip("-")
    words = (words if words[:1].isalpha() else f"{name}-{words}")[:40].strip("-")
    return Conversion({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": words}})


def put_rest(found: Conversion, rest: Mapping[str, object]) -> None:
    """Put the settings that are no fields of a job into `spec.verl`, or say why they have no place in it."""
    engine = rest.get(f"{ROLLOUT}.name", "vllm")
    if engine != "vllm":
        found.note(f"{ROLLOUT}.name", f"{engine} {NO_OTHER_ENGINE[0]}. The job runs with vLLM.")
    trains = MEGATRON if rest.get(ENGINE) == MEGATRON else FSDP
    if trains == MEGATRON:
        found.put("resources.train.engine", MEGATRON)
    rest = {name: value for name, value in rest.items() if name not in READ_HERE}
    rest = {_name_today(name): value for name, value in rest.items()}
    refused = {each.name: each for each in refused_verl_settings(rest, trains)}
    kept = {}
    algorithm = found.data["spec"].get("algorithm", {})
    section = algorithms().get(algorithm.get("type"))
    has_critic = section is not None and "criticLearningRate" in fields_by_alias(section)
    for name, value in rest.items():
        removed = next((REMOVED[each] for each in REMOVED if name == each or name.startswith(f"{each}.")), None)
        if name.startswith("critic.") and not has_critic:
            found.note(name, f"the algorithm {algorithm.get('type')} has no critic.")
        elif removed:
            found.note(name, removed)
        elif MICRO_BATCHES.fullmatch(name):
            found.note(name, "micro-batches are filled up to spec.resources.train.microBatchTokens.")
        elif name in refused:
            way_out = refused[name].way_out
            unknown = f"verl has no such setting. {way_out}".removesuffix(f" {LOOK_UP}")
            found.note(name, unknown if refused[name].rule == UNKNOWN else way_out)
        else:
            kept[name] = value
    if kept:
        found.put("verl", kept)


def _name_today(name: str) -> str:
    for before, after in RENAMED.items():
        if name.startswith(before):
            return after + name.removeprefix(before)
    return name

"""Compares the `-gpu` examples with the scripts that they follow: tests/origins.toml."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from support.models import model_without_weights
from turnmill.jobs import AgentTrainingJob, load_job
from turnmill.training.verl.config import build_verl_config

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "manifests" / "examples"
ORIGINS = tomllib.loads((TESTS / "origins.toml").read_text())


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return model_without_weights(tmp_path_factory.mktemp("model"))


def test_every_example_for_gpus_has_an_origin():
    assert set(ORIGINS["examples"]) == {file.stem for file in EXAMPLES.glob("*-gpu.yaml")}


@pytest.mark.feature("verl-tool", "settings of its recipes")
@pytest.mark.feature("Verlog", "settings of its scripts")
@pytest.mark.feature("GRL", "settings of its configuration")
@pytest.mark.feature("verl's multi-turn", "settings of its recipe")
@pytest.mark.parametrize("name", ORIGINS["examples"])
def test_an_example_has_the_settings_of_its_origin(name: str, model: Path):
    origin = ORIGINS["examples"][name]
    wanted = ORIGINS.get(origin.get("like"), {}) | origin.get("settings", {})
    job = load_job(EXAMPLES / f"{name}.yaml", [f"spec.model.path={model}"])
    found = settings_of(job, model, wanted)

    assert {setting for setting in wanted if found[setting] != wanted[setting]} == set(origin.get("differs", {}))


def settings_of(job: AgentTrainingJob, model: Path, names: dict[str, Any]) -> dict[str, Any]:
    config = build_verl_config(job, model=model, run_dir=Path("run"), device="cuda")
    places = job.model_dump(mode="json", by_alias=True)
    found = {}
    for name in names:
        place = ORIGINS["names"].get(name)
        node = OmegaConf.select(config, name) if place is None else value_at(places, place)
        found[name] = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
    return found


def value_at(node: Any, path: str) -> Any:
    for part in path.split("."):
        node = node[part]
    return node

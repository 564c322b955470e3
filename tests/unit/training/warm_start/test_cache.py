import json
import shutil
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnmill.core.errors import RunFailedError
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.model import WarmStart
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.jobs.verlog_agent import MemorySettings, VerlogAgent
from turnmill.training.warm_start import cache, ensure_warm_start

QUICK = WarmStart(turns=30, gradient_steps=4, batch_size=4, max_loss=10.0)
GO_TO = EnvironmentSettings(name="babyai", task="GoToObj")
AGENT = VerlogAgent(max_turns=8)


def ensure(folder: Path, settings: WarmStart = QUICK, **options: Any) -> Path:
    return ensure_warm_start(settings, environment=GO_TO, agent=AGENT, cache_dir=folder, **options)


def make_stub(folder: Path, *_: Any, **__: Any) -> None:
    (folder / "config.json").write_text("{}")


def test_the_folder_is_a_model_that_transformers_loads(tmp_path: Path):
    folder = ensure(tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    record = json.loads((folder / "warm_start.json").read_text())

    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.config.vocab_size == len(tokenizer) == record["vocabulary"]
    assert model.config.hidden_size // model.config.num_attention_heads == 32
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (1, 0)
    assert record["loss"] > 0
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_the_times_of_a_warm_start_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "time", SimpleNamespace(perf_counter=iter((100.0, 103.0, 107.0)).__next__))

    record = json.loads((ensure(tmp_path) / "warm_start.json").read_text())

    assert (record["demonstration_seconds"], record["seconds"]) == (3.0, 7.0)
    assert WarmStart.model_validate(record["settings"]) == QUICK
    assert "gradientSteps" in record["settings"]


def test_a_warm_start_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "make_warm_start", make_stub)
    folder = ensure(tmp_path)
    monkeypatch.setattr(cache, "make_warm_start", None)

    assert ensure(tmp_path) == folder


def test_a_failed_warm_start_leaves_no_files(tmp_path: Path):
    with pytest.raises(RunFailedError, match="maxLoss"):
        ensure(tmp_path, QUICK.model_copy(update={"max_loss": 1e-6}))

    assert list(tmp_path.iterdir()) == []


def test_of_two_concurrent_warm_starts_the_first_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make_concurrently(folder: Path, *_: Any, **__: Any) -> None:
        monkeypatch.setattr(cache, "make_warm_start", make_stub)
        ensure(tmp_path)
        (folder / "late").touch()

    monkeypatch.setattr(cache, "make_warm_start", make_concurrently)
    folder = ensure(tmp_path)

    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_cannot_be_moved_into_the_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "make_warm_start", lambda folder, *_, **__: folder.rmdir())

    with pytest.raises(FileNotFoundError):
        ensure(tmp_path)


@pytest.mark.parametrize(
    ("settings", "environment", "agent"),
    [
        (WarmStart(seed=1), GO_TO, AGENT),
        (WarmStart(), EnvironmentSettings(name="babyai", task="GoToLocal"), AGENT),
        (WarmStart(), EnvironmentSettings(name="babyai", task="GoToObj", options={"numDists": 1}), AGENT),
        (WarmStart(), GO_TO, VerlogAgent(max_turns=24)),
        (WarmStart(), GO_TO, VerlogAgent(max_turns=8, memory=MemorySettings(text_turns=0))),
        (WarmStart(), GO_TO, ToolAgent()),
    ],
)
def test_the_cache_key_depends_on_settings_environment_and_agent(
    settings: WarmStart, environment: EnvironmentSettings, agent: VerlogAgent | ToolAgent
):
    assert cache.cache_key(settings, environment, agent) != cache.cache_key(WarmStart(), GO_TO, AGENT)


def test_the_cache_key_changes_with_the_code_that_makes_demonstrations_or_imitates_them(tmp_path, monkeypatch):
    copied = tmp_path / "turnmill"
    for part in cache.CODE:
        source, target = cache.PACKAGE / part, copied / part
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    installed = cache.cache_key(QUICK, GO_TO, AGENT)
    monkeypatch.setattr(cache, "PACKAGE", copied)
    assert cache.cache_key(QUICK, GO_TO, AGENT) == installed

    keys = {installed}
    for file in ("tasks/arithmetic.py", "environments/babyai/expert.py", "training/warm_start/cloning.py"):
        (copied / file).write_text((copied / file).read_text() + "\nADDED = 1\n")
        keys.add(cache.cache_key(QUICK, GO_TO, AGENT))

    assert len(keys) == 4


def test_the_cache_key_changes_with_the_version_of_a_package(monkeypatch):
    before = cache.cache_key(QUICK, GO_TO, AGENT)
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.99" if name == "torch" else version(name))

    assert cache.cache_key(QUICK, GO_TO, AGENT) != before


@pytest.mark.parametrize("option", ["{folder}/levels.txt", "my_levels:Level"])
def test_the_cache_key_changes_with_a_file_or_module_that_options_name(tmp_path, monkeypatch, option):
    monkeypatch.syspath_prepend(tmp_path)
    files = [tmp_path / "levels.txt", tmp_path / "my_levels.py"]
    level = GO_TO.model_copy(update={"options": {"levels": [option.format(folder=tmp_path)]}})
    keys = set()
    for content in ("LEVELS = 1\n", "LEVELS = 2\n"):
        for file in files:
            file.write_text(content)
        keys.add(cache.cache_key(QUICK, level, AGENT))

    assert len(keys) == 2


def test_the_cache_key_ignores_settings_that_do_not_change_the_model():
    patient = GO_TO.model_copy(update={"count": 4, "step_timeout_seconds": 5.0})

    assert cache.cache_key(QUICK, patient, AGENT) == cache.cache_key(QUICK, GO_TO, AGENT)


def test_the_cache_folder_follows_the_xdg_standard(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.default_cache_dir() == Path("/somewhere/turnmill/warm-start")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.default_cache_dir() == Path("/home/someone/.cache/turnmill/warm-start")

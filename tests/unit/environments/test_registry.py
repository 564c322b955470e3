import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from support.environments import Hostile
from turnmill import environments
from turnmill.core.errors import SettingsError
from turnmill.environments import registry


def test_every_name_can_be_found():
    assert "babyai" in environments.names()
    for name in environments.names():
        assert environments.find(name).name == name


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(SettingsError, match=r"no environment 'babyay'. Did you mean 'babyai'\?"):
        environments.create("babyay")


def test_an_unknown_option_is_refused_with_a_suggestion():
    with pytest.raises(SettingsError, match=r"options.numDist: .* Did you mean 'numDists'\?"):
        environments.create("babyai", options={"numDist": 1})


def test_an_option_of_the_wrong_type_is_refused_with_its_value():
    with pytest.raises(SettingsError, match=r"environment.options.numDists: 'many' must be a whole number"):
        environments.create("babyai", options={"numDists": "many"})


def test_a_class_can_be_named_by_its_path():
    environment = environments.create("support.environments:Hostile", max_turns=3)

    assert isinstance(environment, Hostile)


@pytest.mark.parametrize("path", ["no.such.module:Class", "support.environments:Nobody", "json:dumps", ":"])
def test_an_import_path_without_an_environment_is_refused(path):
    with pytest.raises(SettingsError, match=re.escape(path)):
        environments.create(path)


def test_an_installed_package_offers_environments_by_entry_point(monkeypatch):
    point = EntryPoint("hostile", "support.environments:Hostile", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "_entry_points", lambda: [point])

    assert environments.find("hostile") is Hostile
    assert "hostile" in environments.names()


def test_a_broken_entry_point_is_a_settings_error(monkeypatch):
    point = EntryPoint("broken", "turnmill.no_such_module:Class", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "_entry_points", lambda: [point])

    with pytest.raises(SettingsError, match="'broken'"):
        environments.find("broken")


def test_a_second_class_under_a_registered_name_is_refused():
    class Impostor(Hostile):
        name = "babyai"

    environments.find("babyai")
    with pytest.raises(ValueError, match=r"give .*Impostor another one"):
        environments.register(Impostor)


def test_the_example_in_the_docs_works(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()
    (code,) = [found for found in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Guessing" in found]
    (tmp_path / "guessing.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    environment = environments.create("guessing:Guessing", options={"highest": 3})
    first = environment.reset(seed=5)
    results = [environment.step(action) for action in ("guess 1", "guess 2", "guess 3")]

    assert environment.reset(seed=5) == first
    assert sum(result.reward for result in results) == 1.0
    assert any(result.terminated for result in results)


def test_the_former_import_path_of_task_sources_is_kept():
    from turnmill import tasks
    from turnmill.environments import tasks as former

    assert former.__all__ == tasks.__all__
    assert all(getattr(former, name) is getattr(tasks, name) for name in tasks.__all__)
    assert "tasks" not in environments.names()


@pytest.mark.feature("Verlog", "names of tasks")
@pytest.mark.parametrize(
    ("name", "task", "hint"),
    [
        ("crafter", "nonsense", "Known: default."),
        ("tetris", "big", "It has none: leave it out."),
        ("babyai", "BabyAI-MixedTrainLocal-v0/goto", "Its name here is 'goto'."),
    ],
)
def test_a_task_that_an_environment_does_not_have_is_refused(name, task, hint):
    with pytest.raises(SettingsError, match=f"environment.task: {name} has no task {task!r}. {hint}"):
        environments.create(name, task=task)


def test_the_task_of_verlogs_script_for_crafter_is_accepted():
    assert environments.create("crafter", task="default").task == "default"

"""Registration and lookup of GRL's agents by name."""

import logging

import pytest

from turnmill.environments.grl import BaseAgent, EnvOutput, get_agent_cls, list_agents, register_agent, registry


def agent_class(name: str) -> type[BaseAgent]:
    def reset_env(self: BaseAgent, seed: int) -> str:
        return ""

    def step_env(self: BaseAgent, action: str) -> EnvOutput | None:
        return None

    return type(name, (BaseAgent,), {"reset_env": reset_env, "step_env": step_env})


@pytest.fixture(autouse=True)
def restored_registry(monkeypatch):
    list_agents()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_broken", {})
    monkeypatch.setattr(registry, "_loaded", set(registry._loaded))


def test_a_registered_agent_is_found_by_its_name():
    made = register_agent("mine")(agent_class("Mine"))

    assert get_agent_cls("mine") is made
    assert "mine" in list_agents()


@pytest.mark.feature("GRL", "registry of agents")
def test_a_second_class_under_a_registered_name_is_refused():
    made = register_agent("mine")(agent_class("Mine"))

    assert register_agent("mine")(made) is made
    with pytest.raises(ValueError, match=r"'mine' belongs to .*Mine: give .*Other another one"):
        register_agent("mine")(agent_class("Other"))


@pytest.mark.feature("GRL", "registry of agents")
def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(KeyError, match="sokobanAgent") as caught:
        get_agent_cls("sokobanAgnt")

    assert "Did you mean 'sokobanAgent'?" in str(caught.value)


def test_an_agent_is_found_by_its_import_path():
    assert get_agent_cls("turnmill.environments.grl.grid_agents:TetrisAgent") is get_agent_cls("tetrisAgent")


@pytest.mark.parametrize("path", ["nowhere.at.all:Agent", "turnmill.environments.grl.grid:GridSymbols"])
def test_an_import_path_must_name_an_agent(path: str):
    with pytest.raises(KeyError, match=r"cannot be imported|is no subclass of"):
        get_agent_cls(path)


def test_an_agent_whose_import_fails_is_left_out_and_its_lookup_raises_the_reason(monkeypatch, caplog):
    monkeypatch.setattr(registry, "_MODULES", ("no_such_module",))

    with caplog.at_level(logging.WARNING):
        assert "sokobanAgent" in list_agents()

    assert "Agent left out" in caplog.text
    with pytest.raises(KeyError, match="could not be imported: ModuleNotFoundError"):
        get_agent_cls("no_such_module")


def test_all_agents_of_grl_are_registered():
    assert set(list_agents()) >= {
        *("sokobanAgent", "tetrisAgent", "blocksworldAgent", "webshopAgent", "birdAgent", "gsm8kAgent"),
        *("amc23Agent", "aime24Agent", "aime25Agent", "math500Agent", "minervamathAgent"),
    }

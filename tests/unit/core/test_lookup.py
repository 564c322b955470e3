import json
from importlib.metadata import EntryPoint

import pytest

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import entry_point_class, import_class, import_object, suggestion


def test_an_import_path_resolves_to_its_object():
    assert import_object("json:dumps") is json.dumps


@pytest.mark.parametrize(
    ("path", "reason"),
    [("nowhere:Thing", "nowhere"), ("json:Thing", "no attribute 'Thing'"), (":Thing", "Empty module name")],
)
def test_an_invalid_import_path_raises_an_error_with_the_reason(path, reason):
    with pytest.raises(ImportError, match=reason):
        import_object(path)


def test_a_class_is_imported_by_its_path():
    assert import_class("json:JSONDecoder", object, "", SettingsError) is json.JSONDecoder


def test_a_class_is_loaded_from_an_entry_point():
    point = EntryPoint("decoder", "json:JSONDecoder", "some.group")

    assert entry_point_class(point, object, "", SettingsError) is json.JSONDecoder


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere:Thing", r"^tool: 'nowhere:Thing' cannot be imported \(ModuleNotFoundError: .*package.module:Class"),
        ("json:loads", "^tool: 'json:loads' is no subclass of json.decoder:JSONDecoder, but <function loads"),
        ("json:JSONEncoder", "^tool: 'json:JSONEncoder' is no subclass of json.decoder:JSONDecoder"),
    ],
)
def test_a_path_to_another_kind_of_object_is_refused(path, message):
    with pytest.raises(SettingsError, match=message):
        import_class(path, json.JSONDecoder, "tool", SettingsError)


def test_the_error_is_of_the_class_that_the_caller_asks_for_and_names_the_entry_point():
    point = EntryPoint("mine", "nowhere:Thing", "some.group")

    with pytest.raises(KeyError, match=r"'mine' \(nowhere:Thing\) cannot be imported"):
        entry_point_class(point, object, "", KeyError)


def test_any_exception_of_a_module_is_an_error_of_its_import(tmp_path, monkeypatch):
    (tmp_path / "broken_on_import.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SettingsError, match=r"cannot be imported \(ZeroDivisionError: division by zero"):
        import_class("broken_on_import:Thing", object, "agent.type", SettingsError)


def test_similar_names_are_suggested_regardless_of_case():
    assert suggestion("gotoobj", ["GoToObj", "Open"]) == "Did you mean 'GoToObj'? Known: GoToObj, Open."
    assert suggestion("xyz", ["GoToObj"]) == "Known: GoToObj."


def test_a_suggestion_lists_at_most_twenty_known_names():
    known = [f"level{number}" for number in range(25)]

    assert suggestion("xyz", known).endswith("level19, and 5 more.")

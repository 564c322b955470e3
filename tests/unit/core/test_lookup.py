import json

import pytest

from turnmill.core.lookup import import_object, suggestion


def test_an_import_path_gives_what_it_names():
    assert import_object("json:dumps") is json.dumps


@pytest.mark.parametrize(
    ("path", "reason"),
    [("nowhere:Thing", "nowhere"), ("json:Thing", "no attribute 'Thing'"), (":Thing", "Empty module name")],
)
def test_a_path_that_names_nothing_says_why(path, reason):
    with pytest.raises(ImportError, match=reason):
        import_object(path)


def test_close_words_are_suggested_whatever_their_case():
    assert suggestion("gotoobj", ["GoToObj", "Open"]) == "Did you mean 'GoToObj'? Known: GoToObj, Open."
    assert suggestion("xyz", ["GoToObj"]) == "Known: GoToObj."


def test_of_many_words_some_are_named():
    known = [f"level{number}" for number in range(25)]

    assert suggestion("xyz", known).endswith("level19, and 5 more.")

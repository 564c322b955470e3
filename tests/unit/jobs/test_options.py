"""Options of classes that a job names."""

from typing import Literal

import pytest
from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.jobs.options import read_options
from turnmill.jobs.settings import Settings


class Size(Settings):
    rows: int


class GridOptions(Settings):
    num_rows: int = Field(ge=1)
    """Rows of the grid."""

    view: Literal["text", "image"] = "text"
    """Form of the observation."""

    sizes: tuple[Size, ...] = Field(default=(), strict=False)
    """Sizes to choose from."""


def test_options_have_their_names_of_the_job_file():
    options = read_options(GridOptions, {"numRows": 3}, "environment.options", owner="grid")

    assert (options.num_rows, options.view) == (3, "text")


def test_python_names_are_options_only_where_they_are_asked_for():
    assert read_options(GridOptions, {"num_rows": 3}, "agent.options", owner="grid", by_name=True).num_rows == 3
    with pytest.raises(SettingsError, match=r"agent\.options\.num_rows: grid has no such option"):
        read_options(GridOptions, {"num_rows": 3}, "agent.options", owner="grid")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "agent.options.numRows: is missing. Add it: Rows of the grid."),
        ({"numRows": 0}, "agent.options.numRows: 0 must be at least 1. Try 1."),
        ({"numRows": "3"}, "agent.options.numRows: '3' must be a whole number."),
        ({"numRows": 1, "view": "txt"}, "agent.options.view: 'txt' must be text or image. Did you mean text?"),
        ({"numRows": 1, "numRow": 2}, "agent.options.numRow: grid has no such option. Did you mean 'numRows'? Known: "),
        ({"numRows": 1, "sizes": [{}]}, "agent.options.sizes[0].rows: is missing."),
        ({"numRows": 1, "sizes": [{"rows": 1, "x": 1}]}, "agent.options.sizes[0].x: 1 is no field of"),
    ],
)
def test_a_problem_names_the_option_the_rule_and_the_way_out(options, message):
    with pytest.raises(SettingsError) as caught:
        read_options(GridOptions, options, "agent.options", owner="grid")

    assert str(caught.value).startswith(message)


def test_all_problems_are_reported_at_once():
    with pytest.raises(SettingsError) as caught:
        read_options(GridOptions, {"numRows": 0, "view": "txt"}, "agent.options", owner="grid")

    assert len(str(caught.value).splitlines()) == 2


def test_a_class_without_options_says_so():
    with pytest.raises(SettingsError, match=r"agent\.options\.x: plain has no such option\. It has no options\."):
        read_options(Settings, {"x": 1}, "agent.options", owner="plain")

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnmill.trajectory_page.filters import PAGE_SIZE, Filters, fetch_list_page, peers, read_filters
from turnmill.trajectory_page.index import Index, insert_summaries
from turnmill.trajectory_page.summary import Summary

SUMMARY = Summary(
    id=0, key="", run="run", kind="training", name="t0-0", environment="babyai", number=0, task=b"a", first_step=1,
    last_step=1, first_version=0, last_version=0, turns=1, tokens=5, reward=0.0, outcome="unsolved", open=0,
)  # fmt: skip


def index(*changes: dict[str, Any]) -> Index:
    made = Index()
    with made.transaction() as connection:
        insert_summaries(
            connection, [replace(SUMMARY, id=number, key=f"k{number}", **each) for number, each in enumerate(changes)]
        )
    return made


def keys(made: Index, address: str) -> list[str]:
    filters, problems = read_filters(dict(parse_qsl(address)))
    assert problems == []
    return [summary.key for summary in fetch_list_page(made, filters).rows]


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("", ["k2", "k1", "k0"]),
        ("outcome=solved", ["k1"]),
        ("kind=validation", ["k2"]),
        ("environment=sokoban", ["k2"]),
        ("run=other", ["k0"]),
        ("name=0-7", ["k1"]),
        ("name=%25", []),
        ("reward_from=0.5", ["k1"]),
        ("reward_to=-0.5", ["k0"]),
        ("reward_from=-1&reward_to=0", ["k2", "k0"]),
        ("turns_from=3&turns_to=3", ["k2"]),
        ("step_from=3", ["k2"]),
        ("step_to=1", ["k0"]),
        ("step_from=2&step_to=2", ["k2", "k1"]),
        ("sort=reward", ["k1", "k2", "k0"]),
        ("sort=reward&backwards=1", ["k0", "k2", "k1"]),
        ("sort=turns", ["k2", "k1", "k0"]),
        ("sort=name", ["k0", "k1", "k2"]),
    ],
)
def test_a_query_selects_and_sorts_the_list(address, found):
    made = index(
        {"name": "t0-0", "reward": -1.0, "run": "other"},
        {"name": "t0-7", "reward": 1.0, "outcome": "solved", "turns": 2, "first_step": 2, "last_step": 2},
        {"name": "v0-0", "kind": "validation", "environment": "sokoban", "turns": 3, "first_step": 2, "last_step": 9},
    )

    assert keys(made, address) == found


def test_a_list_has_pages_and_counts_the_outcomes_on_all_of_them():
    made = index(*[{"outcome": "solved", "reward": 1.0}] * PAGE_SIZE, *[{}] * PAGE_SIZE, {})

    found = fetch_list_page(made, Filters(page=2))

    assert (found.total, found.pages, len(found.rows)) == (2 * PAGE_SIZE + 1, 3, PAGE_SIZE)
    assert found.by_outcome == {"solved": PAGE_SIZE, "unsolved": PAGE_SIZE + 1}
    assert found.mean_reward == pytest.approx(50 / 101)


def test_a_page_beyond_the_last_one_is_the_last_one():
    found = fetch_list_page(index({}), Filters(page=9))

    assert (found.page, len(found.rows)) == (1, 1)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("reward_from=much", "reward from: 'much' is not a number."),
        ("turns_to=1.5", "turns to: '1.5' is not a whole number."),
        ("step_from=99999999999999999999", "step from: '99999999999999999999' is too large."),
        ("reward_to=nan", "reward to: 'nan' is not a number."),
        ("sort=luck", "sort: 'luck' is not a valid order"),
        ("outcome=won", "outcome: 'won' is not a valid outcome"),
    ],
)
def test_invalid_filters_are_reported_and_left_out(address, problem):
    filters, problems = read_filters(dict(parse_qsl(address)))

    assert [text[: len(problem)] for text in problems] == [problem]
    assert filters == Filters()


def test_blank_and_unknown_fields_are_ignored():
    assert read_filters({"name": " ", "reward_from": "", "colour": "mask"}) == (Filters(), [])


@given(
    st.builds(
        Filters,
        name=st.none() | st.text(min_size=1).map(str.strip).filter(bool),
        reward_from=st.none() | st.floats(-9, 9),
        turns_to=st.none() | st.integers(0, 99),
        sort=st.sampled_from(["newest", "reward"]),
        backwards=st.booleans(),
        page=st.integers(1, 9),
    )
)
def test_filters_survive_a_round_trip_through_a_query(filters):
    address = dict(parse_qsl(filters.query().removeprefix("?"), keep_blank_values=True))

    assert read_filters(address) == (filters, [])


def test_peers_are_trajectories_of_the_same_task_by_policy():
    made = index({"task": b"a", "last_version": 4}, {"task": b"b"}, {"task": b"a", "last_version": 2})

    assert [peer.key for peer in peers(made, replace(SUMMARY, task=b"a"))] == ["k2", "k0"]

import pytest

from turnmill.rollout.tool_agent.client import parse_urls, without_control_characters
from turnmill.rollout.tool_agent.stop_tokens import find_action
from turnmill.rollout.trajectory_worker import split_limit


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a:5000/get_observation", ("http://a:5000/get_observation",)),
        ("http://a:5000/, http://b:1", ("http://a:5000/get_observation", "http://b:1/get_observation")),
    ],
)
def test_an_address_is_that_of_a_server_or_of_its_endpoint(text, urls):
    assert parse_urls(text) == urls


@pytest.mark.feature("verl-tool", "control characters")
def test_control_characters_go_from_every_string():
    assert without_control_characters({"a\x00": ["b\x1f", {"c": "\x0b"}, 3], "t": "\t\n\r"}) == {
        "a": ["b", {"c": ""}, 3],
        "t": "\t\n\r",
    }


@pytest.mark.feature("verl-tool", "stop tokens from a file")
@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("x</b>y</a>z", "x</b>y</a>"),
        ("x</b>y", "x</b>"),
        ("nothing", None),
    ],
)
def test_the_first_token_in_the_order_of_the_list_ends_the_action(text, action):
    assert find_action(text, ("</a>", "</b>")) == action


@pytest.mark.feature("verl-tool", "limit on concurrent trajectories")
@pytest.mark.parametrize(
    ("limit", "workers", "shares"),
    [(10, 3, [4, 3, 3]), (2, 4, [1, 1]), (1, 1, [1]), (None, 4, None)],
)
def test_a_limit_is_split_over_workers_that_each_get_a_share(limit, workers, shares):
    assert split_limit(limit, workers) == shares
    assert shares is None or sum(shares) == limit

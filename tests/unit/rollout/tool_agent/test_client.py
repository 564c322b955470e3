import pytest

from turnmill.rollout.tool_agent.client import TOKEN, TOKEN_URL, authorization, parse_urls, without_control_characters
from turnmill.rollout.tool_agent.stop_tokens import find_action
from turnmill.rollout.trajectory_worker import split_limit


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a:5000/get_observation", ("http://a:5000/get_observation",)),
        ("http://a:5000/, http://b:1", ("http://a:5000/get_observation", "http://b:1/get_observation")),
    ],
)
def test_the_endpoint_is_added_to_the_addresses_of_servers(text, urls):
    assert parse_urls(text) == urls


@pytest.mark.parametrize(
    ("servers", "url", "is_sent"),
    [
        (None, "http://anywhere:5000/get_observation", True),
        ("http://team:5000", "http://team:5000/get_observation", True),
        ("http://team:5000", "http://elsewhere:5000/get_observation", False),
        ("http://team:5000", "http://team:5001/get_observation", False),
    ],
)
def test_the_token_of_a_team_is_sent_to_its_own_servers_alone(monkeypatch, servers, url, is_sent):
    monkeypatch.setenv(TOKEN, "0123456789abcdef")
    if servers is not None:
        monkeypatch.setenv(TOKEN_URL, servers)

    assert authorization(url) == ({"Authorization": "Bearer 0123456789abcdef"} if is_sent else {})


@pytest.mark.feature("verl-tool", "control characters")
def test_control_characters_are_removed_from_every_string():
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
def test_the_first_listed_stop_token_in_the_response_ends_the_action(text, action):
    assert find_action(text, ("</a>", "</b>")) == action


@pytest.mark.feature("verl-tool", "limit on concurrent trajectories")
@pytest.mark.parametrize(
    ("limit", "workers", "shares"),
    [(10, 3, [4, 3, 3]), (2, 4, [1, 1]), (1, 1, [1]), (None, 4, None)],
)
def test_a_limit_on_trajectories_is_split_over_workers(limit, workers, shares):
    assert split_limit(limit, workers) == shares
    assert shares is None or sum(shares) == limit

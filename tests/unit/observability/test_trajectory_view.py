from dataclasses import replace

from rich.console import Console, RenderableType

from turnmill.observability.trajectory_log import EpisodeRecord, TurnRecord
from turnmill.observability.trajectory_view import render_episode, render_episodes

FIRST = TurnRecord(
    episode="e3-17",
    environment=3,
    turn=0,
    step=4,
    policy_version=3,
    prompt="[bold]Go to the red ball[/bold]",
    response="go forward",
    action="go forward",
    reward=-0.1,
    valid=False,
    prompt_ids=(1, 2, 3),
    response_ids=(71, 72),
    log_probs=(-0.125, -2.5),
)
EPISODE = EpisodeRecord((FIRST, replace(FIRST, turn=1, step=5, reward=1.0, done=True, stop_reason="completed")))


def text(renderable: RenderableType) -> str:
    console = Console(width=120, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_the_list_shows_the_outcome_of_each_episode():
    heading, row, count = text(render_episodes([EPISODE])).splitlines()

    assert heading.split() == ["episode", "kind", "steps", "policy", "turns", "reward", "outcome", "why"]
    assert row.split() == ["e3-17", "training", "4–5", "3", "2", "0.900", "solved", "completed"]
    assert count == "1 episode"


def test_a_long_list_shows_the_latest_episodes_and_the_total():
    episodes = [EpisodeRecord((replace(FIRST, episode=f"e0-{number}"),)) for number in range(5)]

    shown = text(render_episodes(episodes, limit=2))

    assert "e0-2" not in shown
    assert "e0-4" in shown
    assert "5 episodes, the last 2 shown" in shown


def test_an_episode_shows_prompt_response_and_action():
    shown = text(render_episode(EPISODE))

    assert "[bold]Go to the red ball[/bold]" in shown
    assert "action go forward  not valid   reward -0.100" in shown
    assert "The episode ends: completed" in shown
    assert "-2.5000" not in shown


def test_tokens_and_their_log_probs_are_shown_on_request():
    shown = text(render_episode(EPISODE, tokens=True))

    assert "3 prompt tokens, 2 response tokens" in shown
    assert "72   -2.5000" in shown

import io

from rich.console import Console

from turnmill.cli.progress import BarView, LineView, duration, format_metrics, progress_view
from turnmill.observability.progress import Progress


def lines(*reports: Progress) -> list[str]:
    """Return the lines of a log for these reports."""
    console = Console(file=io.StringIO(), width=40)
    with progress_view(console) as view:
        for progress in reports:
            view(progress)
    return console.file.getvalue().splitlines()


def test_a_log_has_a_line_for_each_step_and_each_phase():
    shown = lines(
        Progress("starting"),
        Progress("training", 0, 20),
        Progress("training", 1, 20, success=0.4, reward=0.38, turns_per_second=95.26, seconds_left=61),
        Progress("training", 1, 20, success=0.4, reward=0.38, turns_per_second=95.26, seconds_left=60),
        Progress("training", 2, 20, message="checkpoint"),
    )

    assert shown == [
        "starting",
        "training 0/20",
        "training 1/20: success 0.40, reward 0.38, 95.3 turns/s, 1 min 1 s left",
        "training 2/20: checkpoint",
    ]


def test_a_log_has_a_line_for_every_tenth_of_a_long_phase():
    shown = lines(*(Progress("warm start", done, 700) for done in range(701)))

    assert len(shown) == 11
    assert (shown[0], shown[1], shown[-1]) == ("warm start 0/700", "warm start 70/700", "warm start 700/700")


def test_a_message_with_brackets_is_printed_unchanged():
    assert lines(Progress("starting", message="[bold] and [0]")) == ["starting: [bold] and [0]"]


def test_a_terminal_has_a_bar_for_each_phase():
    console = Console(file=io.StringIO(), width=120, force_terminal=True, force_interactive=True)
    with progress_view(console) as view:
        view(Progress("starting"))
        view(Progress("training", 3, 20, success=0.4, seconds_left=60))
        view(Progress("validation", 1, 2))
        view(Progress("training", 4, 20, success=0.5))

    last_frame = console.file.getvalue().split("starting")[-1]
    assert isinstance(view, BarView)
    assert "4/20" in last_frame
    assert "success 0.50" in last_frame
    assert "1/2" in last_frame


def test_output_to_a_file_uses_lines():
    assert isinstance(progress_view(Console(file=io.StringIO())), LineView)


def test_unknown_metrics_are_omitted():
    assert format_metrics(Progress("training", 1, 2)) == ""


def test_durations_are_formatted_in_two_units():
    assert [duration(seconds) for seconds in (0.4, 59.6, 423, 7500)] == ["0 s", "1 min 0 s", "7 min 3 s", "2 h 5 min"]

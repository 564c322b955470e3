import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from turnmill.observability.curve import intervals, moving_average, points
from turnmill.observability.proportions import wilson_interval
from turnmill.observability.report import draw_curve, report_text, summarise
from turnmill.observability.run_folder import RunFolder

STEP = {
    "turnmill/success": 0.5,
    "turnmill/reward_mean": 0.4,
    "turnmill/episode_length": 12.0,
    "turnmill/kl_reference": 0.01,
    "turnmill/turns": 64,
    "turnmill/episodes/completed": 3,
    "turnmill/episodes/failed": 1,
    "turnmill/failures/EnvironmentDied": 1,
    "timing_s/step": 4.0,
    "timing_s/gen": 2.0,
    "timing_s/update_actor": 1.0,
    "timing_s/update_weights": 0.5,
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "babyai-goto")
    folder.create()
    return folder


def lines(folder: RunFolder) -> list[str]:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(report_text(folder.path))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_the_report_shows_results_time_per_phase_and_failures(folder: RunFolder):
    folder.append_metrics(0, {"validation/success": 0.4})
    folder.append_metrics(1, STEP)
    folder.append_metrics(2, {**STEP, "validation/success": 0.9, "timing_s/testing": 7.0})
    draw_curve(folder.path)

    shown = lines(folder)

    assert "success before 40%" in shown
    assert "success after 90%" in shown
    assert "gen generating 4.0 50.0%" in shown
    assert "(no phase) neither 1.0 12.5%" in shown
    assert "neither generating nor learning 25.0%" in shown
    assert "testing outside the step 7.0" in shown
    assert "failed 2 25.0%" in shown
    assert "failed: EnvironmentDied 2" in shown
    assert f"curve {folder.curve}" in shown


def test_the_report_shows_success_with_its_interval(folder: RunFolder):
    folder.append_metrics(0, {"validation/success": 0.5, "validation/episodes": 64.0})
    folder.append_metrics(2, {"validation/success": 1.0, "validation/episodes": 64.0})

    shown = lines(folder)

    assert "success before 50% (95 % interval 38% to 62%, 64 episodes)" in shown
    assert "success after 100% (95 % interval 94% to 100%, 64 episodes)" in shown


def test_the_report_names_what_looks_wrong(folder: RunFolder):
    folder.append_metrics(1, STEP)
    assert lines(folder)[-2:] == ["What to look at", "nothing unusual"]

    folder.append_metrics(2, {**STEP, "turnmill/truncated_ratio": 0.97})

    assert lines(folder)[-4:] == [
        "What to look at",
        "responses cut off: 97% of the responses reach the token limit, and what they were about to do is lost.",
        "Try: More tokens: `maxResponseTokens` or `maxResponseLength`, with a tool also `maxActionLength`.",
        "See docs/troubleshooting.md, The policy does not learn.",
    ]


def test_the_report_of_a_finished_run_has_its_versions(folder: RunFolder):
    folder.write_summary({**summarise(folder.path), "versions": {"turnmill": "0.0.7", "vllm": None}})

    assert "versions turnmill 0.0.7" in lines(folder)


def test_a_run_without_steps_can_be_reported(folder: RunFolder):
    assert "success before -" in lines(folder)


@pytest.mark.parametrize("steps", [0, 1, 40])
def test_a_curve_can_be_drawn_at_any_time_of_a_run(folder: RunFolder, steps: int):
    for step in range(1, steps + 1):
        folder.append_metrics(step, {**STEP, "turnmill/kl_reference": float("nan") if step == 1 else 0.1})

    picture = draw_curve(folder.path)

    with Image.open(picture) as image:
        assert image.width > image.height > 500
    assert [file.name for file in folder.path.glob("*curve*")] == ["curve.png"]


def test_a_curve_skips_missing_values():
    rows = [{"step": 0}, {"step": 1, "a": None}, {"step": 2, "a": 0.5}]

    assert points(rows, "a") == [(2, 0.5)]


def test_a_curve_has_an_interval_for_each_validation_of_known_size():
    rows = [
        {"step": 0, "validation/success": 0.5, "validation/episodes": 64.0},
        {"step": 1, "turnmill/success": 0.5},
        {"step": 2, "validation/success": 0.5},
    ]

    assert intervals(rows) == [(0, wilson_interval(32, 64))]


def test_a_validation_of_the_curve_is_drawn_with_its_interval(folder: RunFolder):
    pictures = []
    for episodes in (16.0, 256.0):
        folder.truncate_after(-1)
        folder.append_metrics(0, {"validation/success": 0.5, "validation/episodes": episodes})
        pictures.append(draw_curve(folder.path).read_bytes())

    assert pictures[0] != pictures[1]


def test_the_moving_average_is_the_mean_of_the_last_values():
    assert moving_average([(1, 1.0), (2, 3.0), (3, 5.0)], window=2) == [(1, 1.0), (2, 2.0), (3, 4.0)]


def test_matplotlib_is_imported_only_to_draw():
    code = (
        "import json, sys; import turnmill.observability.report, turnmill.observability.prometheus;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[3] / "platform")}

    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )

    assert {"matplotlib", "torch", "ray", "verl", "vllm"}.isdisjoint(json.loads(result.stdout))

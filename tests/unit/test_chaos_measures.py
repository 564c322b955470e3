"""The figures of RL-chaos: moments by seed, how a run ended, what it lost, what a fault faked."""

import argparse
import dataclasses
import importlib
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules without processes."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("cadence", "faults", "measures", "page", "proxy", "result", "systems")
    found = SimpleNamespace(**{name: importlib.import_module(f"chaos.{name}") for name in names})
    yield found
    for name in [name for name in sys.modules if name.partition(".")[0] in ("chaos", "results_file")]:
        monkeypatch.delitem(sys.modules, name)


def record(chaos, **fields):
    calm = {
        "exit_code": 0, "silent_seconds": 1.0, "seconds": 60.0, "first_effect": 20.0, "steps": [30.0, 40.0, 50.0, 60.0],
        "faults": [], "effects": [], "played": {},
    }  # fmt: skip
    return chaos.measures.Record(**calm | fields)


def test_the_moment_of_a_fault_follows_from_its_name_and_the_seed(chaos):
    moments = [chaos.faults.moment("kill store", seed, 100.0) for seed in range(50)]

    assert moments == [chaos.faults.moment("kill store", seed, 100.0) for seed in range(50)]
    assert moments[0] != chaos.faults.moment("stop store", 0, 100.0)
    assert len(set(moments)) == 50
    assert all(5 <= moment <= 75 for moment in moments)


def test_repeated_faults_come_once_in_each_interval_and_follow_from_the_seed(chaos):
    kinds = chaos.faults.repeated("all", chaos.faults.FAULTS)

    drawn = list(itertools.islice(chaos.faults.draws(0, 10.0, kinds), 200))

    assert drawn == list(itertools.islice(chaos.faults.draws(0, 10.0, kinds), 200))
    assert drawn != list(itertools.islice(chaos.faults.draws(1, 10.0, kinds), 200))
    assert [int(moment // 10) for moment, _ in drawn] == list(range(200))
    assert len({moment % 10 for moment, _ in drawn}) == 200
    # Every kind comes, and the others of a draw are there to take its place.
    assert {order[0].name for _, order in drawn} == {kind.name for kind in kinds}
    assert all(len(set(order)) == len(kinds) for _, order in drawn)


def test_groups_of_repeated_faults(chaos):
    names = {
        group: {fault.name for fault in chaos.faults.repeated(group, chaos.faults.FAULTS)}
        for group in ("all", "around", "centre", "kill store", "kill engine", "transfer cut", "stop")
    }

    own = {f"{signal} {part}" for signal in ("kill", "stop") for part in ("Ray node", "Ray controller", "queue")}
    assert names["all"] == set(chaos.faults.NAMES) - own - {"none", "store tail lost", "transfer cut"}
    centre = {f"{signal} {part}" for signal in ("kill", "stop") for part in ("trainer", "engine", "engine core")}
    assert names["around"] == names["all"] - centre
    assert names["centre"] == centre
    assert names["stop"] == {name for name in names["all"] if name.startswith("stop")}
    for name in ("kill store", "kill engine", "transfer cut"):
        assert names[name] == {name}


@pytest.mark.parametrize(
    ("system", "some", "none"),
    [
        ("turnmill", {"kill store", "store slow", "calls fail"}, {"kill environment"}),
        (
            "turnmill-environment",
            {"kill environment", "stop environment", "kill trainer", "kill store", "store slow"},
            {"kill tool server", "calls fail"},
        ),
    ],
)
def test_a_system_has_the_faults_of_its_parts(chaos, system, some, none):
    names = {fault.name for fault in chaos.systems.faults_of(system)}

    assert some | {"disk full", "clock step"} <= names
    assert not names & none


def test_a_repeated_fault_is_over_before_half_of_the_time_to_the_next(chaos):
    seconds = {
        name: [chaos.faults.lasting(chaos.faults.fault(name), every) for every in (10.0, 60.0)]
        for name in ("store cut", "calls fail", "kill store")
    }

    assert seconds == {"store cut": [5.0, 15.0], "calls fail": [5.0, 20.0], "kill store": [0.0, 0.0]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "ended"),
        ({"steps": [30.0]}, "gave up"),
        ({"exit_code": 1}, "gave up"),
        ({"exit_code": None, "silent_seconds": 300.0}, "hung"),
        ({"exit_code": None, "silent_seconds": 299.0}, "too long"),
    ],
)
def test_how_a_run_ended(chaos, fields, expected):
    assert chaos.measures.outcome(record(chaos, **fields), steps=4, hang_seconds=300) == expected


def test_useful_time_is_that_of_the_same_steps_undisturbed(chaos):
    calm = record(chaos)

    late = record(chaos, steps=[30.0, 40.0, 90.0, 100.0], seconds=100.0)
    hung = record(chaos, exit_code=None, steps=[30.0, 40.0], seconds=420.0)

    assert chaos.measures.ettr(calm, calm) == 1.0
    # Starting takes longer in both: it is no training.
    assert chaos.measures.ettr(late, calm) == pytest.approx(40 / 80)
    assert chaos.measures.ettr(hung, calm) == pytest.approx(20 / 400)
    assert chaos.measures.ettr(record(chaos, first_effect=None, steps=[]), calm) == 0


def test_own_ettr_is_the_time_of_complete_steps_by_the_clock_of_the_run(chaos):
    late = record(chaos, steps=[30.0, 40.0, 90.0, 100.0], seconds=110.0, step_times=[10.0, 10.0, 20.0, 10.0])
    short = record(chaos, exit_code=1, steps=[30.0, 40.0], seconds=120.0, step_times=[10.0, 10.0])

    assert chaos.measures.own_ettr(late, 4) == pytest.approx(50 / 80)
    assert chaos.measures.own_ettr(short, 4) == pytest.approx(20 / 100)
    assert chaos.measures.own_ettr(record(chaos), 4) is None


def test_delays_are_the_cost_of_the_faults_in_the_same_step_else_of_the_last_one(chaos):
    steps = [30.0, 45.0, 90.0, 98.0, 160.0]

    run = record(chaos, steps=steps, faults=[32.0, 50.0, 60.0, 170.0])

    # 30 to 45 is late by 5 s; 45 to 90 by 35 s for two; no fault from 90 on, where the steps take -2 s and 52 s more.
    calm = record(chaos)
    assert chaos.measures.lost_seconds(run, calm) == pytest.approx([5.0, 17.5, 17.5 - 2 + 52, 0.0])
    failed = record(chaos, exit_code=1, steps=steps[:1], faults=[32.0], seconds=100.0)
    assert chaos.measures.lost_seconds(failed, calm) == pytest.approx([60.0])


def test_the_delay_of_the_first_step_is_beyond_that_of_the_undisturbed_run(chaos):
    calm = record(chaos, first_effect=5.0)

    run = record(chaos, first_effect=5.0, steps=[32.0, 45.0], faults=[10.0, 40.0])

    assert chaos.measures.lost_seconds(run, calm) == pytest.approx([2.0, 3.0])


def test_recovery_ends_with_the_next_step(chaos):
    assert chaos.measures.recover_seconds(record(chaos, faults=[41.0])) == 9.0
    assert chaos.measures.recover_seconds(record(chaos, faults=[61.0])) is None
    assert chaos.measures.recover_seconds(record(chaos)) is None


def test_a_call_is_lost_with_its_trajectory_and_repeated_if_it_takes_effect_twice(chaos):
    played = {"a-0": chaos.measures.Played(0.5), "a-1": chaos.measures.Played(0.5, learned=False)}
    effects = [("a-0", 1, "k"), ("a-0", 2, "l"), ("a-0", 2, "l"), ("a-0", 2, "m"), ("a-1", 1, "n"), ("b-0", 1, "o")]

    run = record(chaos, effects=effects, played=played)
    measured = chaos.measures.measure(run, record(chaos), steps=4, hang_seconds=300)

    # Two of a-0 that were made again, that of a trajectory without a part in learning, that of one never finished.
    assert measured.turns_lost == 4
    assert (measured.calls_repeated, measured.effects_repeated) == (2, 1)
    assert (measured.left_out, measured.left_out_answered) == (1, None)


def test_what_is_left_out_for_want_of_an_answer_is_told_from_the_rest(chaos):
    played = {f"a-{number}": chaos.measures.Played(0.5, learned=number == 0) for number in range(4)}

    run = record(chaos, played=played, unanswered=["a-0", "a-2"])
    measured = chaos.measures.measure(run, record(chaos), steps=4, hang_seconds=300)

    assert (measured.left_out, measured.left_out_answered) == (3, 2)


def test_a_reward_is_faked_if_it_was_learned_from_and_is_another_one_undisturbed(chaos):
    played = chaos.measures.Played
    calm = {name: played(reward) for name, reward in (("a-0", 0.1), ("a-1", 0.9), ("a-2", 0.4), ("a-3", 0.6))}
    honest = calm | {"a-0": played(0.0, learned=False)}
    faked = calm | {"a-0": played(0.0)}

    assert chaos.measures.faked(honest, calm) == []
    assert chaos.measures.faked(faked, calm) == ["a-0"]
    assert chaos.measures.advantage_change(honest, calm) == 0
    assert chaos.measures.advantage_change(faked, calm) > 0.1
    # What the trainer computed counts, if it is known.
    wrong = {"a-0": played(0.1), "a-1": played(0.9, advantage=5.0)}
    assert chaos.measures.advantage_change(wrong, calm) > 4


def test_the_trajectory_of_a_call_is_found_in_either_request(chaos):
    assert chaos.proxy.trajectory_of(b'{"trajectory": "t0.1-2", "call": 1}') == "t0.1-2"
    assert chaos.proxy.trajectory_of(b'{"trajectory_ids": ["run-t1-0-2"], "finish": [false]}') == "run-t1-0-2"
    assert chaos.proxy.trajectory_of(b'{"trajectory_ids": ["run-t1-0-2"], "finish": [true]}') == ""
    assert chaos.proxy.trajectory_of(b"") == ""


def test_the_page_has_each_run_and_marks_what_did_not_end(chaos):
    fields = {
        "commit": "abc", "date": "2026-01-01", "version": "1", "seed": 0, "steps": 8, "turns_lost": 0,
        "calls_repeated": 0, "effects_repeated": 0, "rewards_faked": 3, "left_out": 0, "advantage_change": 0.0,
        "step_seconds": 4.0, "ettr": 0.5, "seconds": 60.0, "recover_seconds": None, "moments": [], "note": "",
    }  # fmt: skip
    rows = [
        chaos.result.Result(system=system, fault=fault, outcome=outcome, **fields)
        for system, fault, outcome in (
            ("verl", "none", "ended"), ("verl", "kill engine", "hung"), ("turnmill", "kill engine", "ended")
        )
    ]  # fmt: skip

    text = chaos.page.page(rows)

    assert "| kill engine | 0 | **hung** | 8 | 0 | 0 | 0 | 3 | 0 | 0 |  | 50% | never | `abc` |" in text
    assert "Runs with a fault: 1, of which 1 hung. Rewards faked: 3; calls repeated: 0; effects repeated: 0." in text
    assert text.index("## turnmill") < text.index("## plain verl")


def test_a_run_with_repeated_faults_is_on_the_page_with_what_each_has_cost(chaos, tmp_path, monkeypatch):
    calm = record(chaos, step_times=[9.0] * 4)
    run = record(
        chaos, steps=[30.0, 60.0, 70.0, 80.0], seconds=82.0, step_times=[10.0, 12.0, 10.0, 10.0],
        faults=[35.0, 65.0], kinds=["stop store", "store cut"], effects=[("a-0", 1, "k")] * 5,
    )  # fmt: skip
    options = argparse.Namespace(steps=4, hang_seconds=300.0)
    monkeypatch.setattr(chaos.result, "CADENCE_RESULTS", tmp_path / "results.jsonl")

    result = chaos.cadence.result_of("verl", "around", 30.0, 0, 0, run, calm, options, "abc")
    (tmp_path / "results.jsonl").write_text(json.dumps(dataclasses.asdict(result)) + "\n")
    text = chaos.page.page([], chaos.result.latest_cadences())

    assert "| around | 30 | 0 | 0 | ended | 4 | 2 | 5 | 0.16 | 0 | 0 | 0 | 67% | 67% | 70% (90%) | 40 |" in text
    assert "`around` every 30 s, 2 in all, in one run: ETTR 67% (67% by delays), ended 1, hung 0, effects" in text
    assert "ended 1, hung 0, effects repeated 0, rewards faked 0" in text
    assert "| stop store | 20.0 (1) |" in text
    assert "| store cut | 0.0 (1) |" in text
    assert "how often each fault came" not in text


def test_what_a_fault_cost_a_run_that_did_not_end_is_not_said(chaos):
    calm = record(chaos)
    run = record(
        chaos, steps=[30.0], seconds=400.0, silent_seconds=365.0, exit_code=None, faults=[35.0], kinds=["stop store"]
    )
    options = argparse.Namespace(steps=4, hang_seconds=300.0)

    result = chaos.cadence.result_of("verl", "around", 30.0, 0, 0, run, calm, options, "abc")
    text = chaos.page.page([], [result])

    assert "`around` every 30 s, 1 in all, in one run: ETTR 3%, ended 0, hung 1, effects" in text
    assert "| **hung** | 1 | 1 | 0 | 0.00 | 0 | 0 | 0 | 3% |  |  | 40 |" in text
    assert "What each fault cost" not in text


def test_the_faults_of_all_runs_of_turnmill_are_counted(chaos):
    calm, options = record(chaos), argparse.Namespace(steps=4, hang_seconds=300.0)
    runs = (("turnmill", ["stop store", "store cut"]), ("turnmill-async", ["store cut"]), ("verl", ["store cut"] * 3))
    results = [
        chaos.cadence.result_of(
            system, "around", 30.0, 0, 0, record(chaos, faults=[5.0] * len(kinds), kinds=kinds), calm, options, "abc"
        )
        for system, kinds in runs
    ]

    text = chaos.page.page([], results)

    assert "In all 2 runs of turnmill at a cadence, of the three kinds below: 3 faults; 2 runs ended, 0 hung" in text
    assert "| fault | times |\n| --- | --- |\n| store cut | 2 |\n| stop store | 1 |\n" in text

"""The part of the page on faults that come again and again."""

import statistics
from collections import Counter
from collections.abc import Sequence

from chaos.faults import ALL, AROUND, CENTRE, LONGEST_PART, ONCE, SPELL_SECONDS, fault, lasting
from chaos.result import CadenceResult
from chaos.systems import CADENCE_RETRIES
from chaos.turnmill_async_system import PASSES, STEPS_AHEAD

METHOD = f"""\
## Faults at a cadence

Here faults come again and again into one run:

```
.venv/bin/python benchmarks/rl_chaos.py cadence --every 60 10 --groups {AROUND} {ALL} --steps 250 --seeds 0 --rounds 1
.venv/bin/python benchmarks/rl_chaos.py cadence --every 3 --groups {AROUND} --steps 40 --seeds 0 --rounds 1
.venv/bin/python benchmarks/rl_chaos.py cadence --every 15 --groups {CENTRE} --steps 40 --seeds 11 --rounds 1
.venv/bin/python benchmarks/rl_chaos.py cadence --every 12 --groups "kill engine" "stop engine" --steps 45 --seeds 30 31
.venv/bin/python benchmarks/rl_chaos.py cadence --every 15 --groups "transfer cut" --steps 30 --seeds 0 --rounds 1
.venv/bin/python benchmarks/rl_chaos.py cadence --systems turnmill-environment --every 4 --groups "kill environment" \\
  --steps 40 --seeds 0 1
.venv/bin/python benchmarks/rl_chaos.py cadence --every 4 --groups "store tail lost" --steps 40 --seeds 0 --rounds 1
.venv/bin/python benchmarks/rl_chaos.py cadence --systems turnmill verl verifiers --steps 60 --longest 600
.venv/bin/python benchmarks/rl_chaos.py cadence --systems turnmill-async --every 60 --steps 150 --seeds 0 1
.venv/bin/python benchmarks/rl_chaos.py cadence --systems turnmill-async --every 10 --steps 60 --seeds 0 1
.venv/bin/python benchmarks/rl_chaos.py page
```

Each run adds a line to `benchmarks/results/chaos_cadence.jsonl`; the table shows the last one of a system, group,
cadence, seed and round. A round begins with an undisturbed run of the same steps and set-up.

- **Draws.** Time from the first call of a tool is cut into intervals of that many seconds. In each of them comes one
  fault, at a random moment and of a random kind, all kinds alike; both follow from the seed. One that finds nothing to
  hurt, such as a process that is only being started, is replaced by the next of the draw. Intervals go on while a run
  starts again. Where they come faster than every 10 s, and those of trainer and engine, they come
  about as fast as a run recovers from them: that is [to count](#turnmill-how-often-each-fault-came) what they break, as
  the single faults are, and not for the time. Up to four such runs went on at once on the two cores.
- **Groups.** `{ALL}` has all faults below but those of Ray and of the queue, *{"* and *".join(ONCE)}*, each of which
  is a group by its name: the store's undoes what it has confirmed, and then the benchmark starts the store again
  instead of its watch; a transfer needs a moment of its own. An agent in environments has no tool server to hurt, and
  other systems have no environments of their own. `{AROUND}` leaves out those of the trainer and the engine,
  `{CENTRE}` has these alone. A step of this task takes two to four seconds and a start half a minute, which is
  ten or more steps; where a step takes minutes, the same start is a part of one. `{ALL}` says what a start costs,
  `{AROUND}` what all else does.
- **Durations.** A fault that passes lasts for half of an interval at most (`LONGEST_PART` is {LONGEST_PART}), else as
  below; calls fail for {SPELL_SECONDS:.0f} s. The clock jumps between three times of day, an hour apart.
- **Set-up.** Tool server and store are started by the benchmark, with turnmill's own classes and so with the watch that
  they have in a run, as a proxy and a wire must come between. The job has `retries: {CADENCE_RETRIES}`.
- **turnmill, rollout ahead of learning**: the same job with `mode: separate_async`, `maxStaleness: {STEPS_AHEAD}` and
  `epochs: {PASSES}`, by which a step takes 2.3 s and waits for learning, not for rollout. Trajectories of up to
  {STEPS_AHEAD} further steps, or 37 s, are in flight or wait while a step is trained; *lost each* counts those of one
  step alone. This hides what rollout waits for only where rollout is faster than learning: with one pass over the rows
  and 8 steps ahead, a step took 0.9 s of both cores, and each of four cuts of 15 s cost 10 to 20 s (commit 5875b90d).
  The row of commit 3f0bc586 is of that set-up.
- **plain verl and verifiers** are set up as above, with a loop that starts them again {CADENCE_RETRIES} times. They
  have no store: `{AROUND}` and `{ALL}` lack its faults, so that the same seed draws others than for turnmill. What a
  signal has stopped stays so, as nothing of theirs looks for it; a tool server that has ended is started again by the
  benchmark. The two ran at the same time, each with its own undisturbed run; turnmill's runs of the same command are
  its round 1, on a machine that did nothing else.

| column | what |
| --- | --- |
| result | `ended` with all steps; `hung` without a call and a step for 300 s; `gave up`; `too long` for `--longest` |
| ETTR | time from the first call of a tool to the last step undisturbed, as a share of that with faults: what a user \
waits for. Of a run without the last step, that of its complete ones, as a share of the time until it was ended |
| own ETTR | sum of the times of the steps that were kept, by the run's own clock (`timing_s/step`), as a share of the \
same time: productive time as a share of all, as for Llama 3. A step that is slow because of a fault counts as \
productive here; the undisturbed run's is in brackets. Not of plain verl and verifiers |
| lost each | turns lost, for each trajectory that was in flight when a fault came: each fault meets one step's |
| late s | the seconds by which steps were late, of all faults together: what they took beyond the undisturbed run's \
median step, and the first beyond its first (beyond the median, too, in rows before commit c58b4eb7) |
| by delays | ETTR from *undisturbed s* and *late s*. If the machine was slow for a part of the undisturbed run alone, \
ETTR is too high, and this less so. Of runs that ended alone, as are the costs of a fault |
| lasted s | for how long faults that pass were there; no recovery saves it where work needs what is gone |

"""

COSTS = """\
What each fault cost: the seconds by which steps were late, on average, and in brackets how often it came. A delay is
that of the faults in the same step, in equal parts, else of the last one before it."""

HEADER = ("faults", "every s", "seed", "round", "result", "steps", "number", "turns lost", "lost each",
          "effects repeated", "rewards faked", "left out", "ETTR", "by delays", "own ETTR", "undisturbed s", "late s",
          "lasted s", "commit")  # fmt: skip


def section(results: Sequence[CadenceResult], titles: dict[str, str]) -> str:
    """Return the section with the tables of all systems that were run."""
    parts = [METHOD, counts(results)]
    for system, title in titles.items():
        own = sorted((r for r in results if r.system == system), key=_order)
        parts.append(_tables(title, own) if own else f"### {title}: faults at a cadence\n\nNot run on this code.\n\n")
    return "".join(parts).rstrip() + "\n"


def counts(results: Sequence[CadenceResult]) -> str:
    """Return the section that says how often each fault came in all of turnmill's runs, and what they broke."""
    own = [r for r in results if r.system.startswith("turnmill")]
    if not own:
        return ""
    times = Counter(kind for r in own for kind, _ in r.injected)
    outcomes = Counter(r.outcome for r in own)
    gave_up = len(own) - outcomes["ended"] - outcomes["hung"]
    effects, rewards = sum(r.effects_repeated for r in own), sum(r.rewards_faked for r in own)
    lines = [
        "### turnmill: how often each fault came",
        "",
        f"In all {len(own)} runs of turnmill at a cadence, of the three kinds below: {sum(times.values())} faults; "
        f"{outcomes['ended']} runs ended, {outcomes['hung']} hung, {gave_up} gave up; effects repeated {effects}, "
        f"rewards faked {rewards}, turns lost {max(r.turns_lost_each for r in own):.2f} at most for each trajectory in "
        "flight.",
        "",
        "| fault | times |",
        "| --- | --- |",
        *(f"| {kind} | {number} |" for kind, number in sorted(times.items(), key=lambda item: (-item[1], item[0]))),
    ]
    return "\n".join(lines) + "\n\n"


def _order(result: CadenceResult) -> tuple[float, str, int, int]:
    return -result.every, result.fault, result.seed, result.round


def _tables(title: str, results: Sequence[CadenceResult]) -> str:
    lines = [f"### {title}: faults at a cadence", "", *_sentences(results), ""]
    lines += ["| " + " | ".join(HEADER) + " |", "| " + " | ".join("---" for _ in HEADER) + " |"]
    lines += ["| " + " | ".join(row(result)) + " |" for result in results]
    ended = [result for result in results if result.outcome == "ended"]
    return "\n".join([*lines, *(_cost_lines(ended) if ended else ())]) + "\n\n"


def _cost_lines(results: Sequence[CadenceResult]) -> list[str]:
    """Return the table of what each fault cost."""
    cadences = sorted({result.every for result in results}, reverse=True)
    lines = ["", COSTS, ""]
    lines += ["| fault | " + " | ".join(f"every {every:g} s" for every in cadences) + " |"]
    lines += ["| --- | " + " | ".join("---" for _ in cadences) + " |"]
    costs = {every: _costs(results, every) for every in cadences}
    kinds = {kind for every in cadences for kind in costs[every]}
    for kind in sorted(kinds, key=lambda kind: -max(statistics.fmean(c[kind]) for c in costs.values() if kind in c)):
        lines.append(f"| {kind} | " + " | ".join(_cost(costs[every].get(kind, ())) for every in cadences) + " |")
    return lines


def row(result: CadenceResult) -> list[str]:
    """Return the cells of a result."""
    own = "" if result.own_ettr is None else f"{result.own_ettr:.0%} ({result.undisturbed_own_ettr or 0:.0%})"
    return [
        result.fault, f"{result.every:g}", str(result.seed), str(result.round),
        result.outcome if result.outcome == "ended" else f"**{result.outcome}**", str(result.steps),
        str(len(result.injected)), str(result.turns_lost), f"{result.turns_lost_each:.2f}",
        str(result.effects_repeated), str(result.rewards_faked), result.left_out_cell, f"{result.ettr:.0%}",
        f"{result.ettr_by_delays:.0%}" if result.outcome == "ended" else "", own,
        f"{result.undisturbed_seconds:.0f}", f"{result.late_seconds:.0f}",
        f"{sum(lasting(fault(kind), result.every) for kind, _ in result.injected):.0f}", f"`{result.commit}`",
    ]  # fmt: skip


def _sentences(results: Sequence[CadenceResult]) -> list[str]:
    """Return a sentence for each cadence and group."""
    pairs = sorted({(r.every, r.fault) for r in results}, key=lambda pair: (-pair[0], pair[1]))
    return [_sentence(each[0], each[1], [r for r in results if (r.every, r.fault) == each]) for each in pairs]


def _sentence(every: float, group: str, results: Sequence[CadenceResult]) -> str:
    delays = [result.ettr_by_delays for result in results if result.outcome == "ended"]
    by_delays = f" ({statistics.median(delays):.0%} by delays)" if delays else ""
    ettr = f"ETTR {statistics.median(result.ettr for result in results):.0%}{by_delays}"
    runs = "one run" if len(results) == 1 else f"{len(results)} runs (median)"
    ended, hung = (sum(result.outcome == outcome for result in results) for outcome in ("ended", "hung"))
    effects, rewards = sum(r.effects_repeated for r in results), sum(r.rewards_faked for r in results)
    return (
        f"- A fault of `{group}` every {every:g} s, {sum(len(r.injected) for r in results)} in all, in {runs}: {ettr}, "
        f"ended {ended}, hung {hung}, effects repeated {effects}, rewards faked {rewards}, turns lost "
        f"{max(r.turns_lost_each for r in results):.2f} at most for each trajectory in flight."
    )


def _costs(results: Sequence[CadenceResult], every: float) -> dict[str, list[float]]:
    costs: dict[str, list[float]] = {}
    for kind, seconds in (injected for r in results if r.every == every for injected in r.injected):
        costs.setdefault(kind, []).append(seconds)
    return costs


def _cost(seconds: Sequence[float]) -> str:
    return f"{statistics.fmean(seconds):.1f} ({len(seconds)})" if seconds else ""

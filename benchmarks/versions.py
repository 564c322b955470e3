"""Compares this checkout with another one by a benchmark of both, run in turns on the same machine.

Each checkout has its own `.venv`. The benchmark must be in both, and its tables must name rows and columns alike. The
order changes with every round, so that neither always runs on the warmer machine. A cell is the median over the rounds.

git worktree add ../before COMMIT && make -C ../before install
.venv/bin/python benchmarks/versions.py --before ../before --rounds 5 -- benchmarks/sandbox.py --seconds 1
.venv/bin/python benchmarks/versions.py --before ../before --rounds 3 -- benchmarks/main_job.py --seeds 0
"""

import argparse
import os
import re
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path

from runs import table

LIMIT_SECONDS = 3600
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
Cells = dict[tuple[str, str], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout, installed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("benchmark", nargs="+", help="a file of both checkouts, and its arguments")
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "now": Path.cwd()}
    measured: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: {"before": [], "now": []})
    for number in range(options.rounds):
        for name in sorted(checkouts, reverse=number % 2 == 1):
            for cell, value in cells_of(run(checkouts[name], options.benchmark)).items():
                measured[cell][name].append(value)
        # After every round: what is measured stays known if a later round is interrupted.
        print(comparison(measured), flush=True)


def run(checkout: Path, benchmark: list[str]) -> str:
    """The output of a benchmark in a checkout, with the checkout's own interpreter."""
    return subprocess.run(
        [str(checkout / ".venv/bin/python"), *benchmark],
        cwd=checkout,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    ).stdout


def cells_of(output: str) -> Cells:
    """The first number of each cell of the last Markdown table, by row and column.

    Columns before the first one with a number only are the row's name.
    """
    lines = [line for line in output.splitlines() if line.startswith("|")]
    header_at = max(index for index, line in enumerate(lines) if set(line) <= set("|- ")) - 1
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[header_at:]]
    names = next(index for index, cell in enumerate(rows[0]) if NUMBER.match(cell))
    return {
        (", ".join(row[:names]), column): float(number[0])
        for row in rows
        for column, cell in zip(header[names:], row[names:], strict=True)
        if (number := NUMBER.match(cell))
    }


def comparison(measured: dict[tuple[str, str], dict[str, list[float]]]) -> str:
    """The medians of both, and their ratio with the smallest and the largest of a round."""
    lines = []
    for (row, column), values in measured.items():
        before, now = (statistics.median(values[name]) if values[name] else None for name in ("before", "now"))
        if before is None or now is None:
            continue
        ratios = [b / a for a, b in zip(values["before"], values["now"], strict=False) if a]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        lines.append([row, column, f"{before:g}", f"{now:g}", spread])
    return table(["", "figure", "before", "now", "now / before by round"], lines)


if __name__ == "__main__":
    main()

"""Trains with stale rows from a perturbed engine, with and without off-policy correction, over several seeds.

PYTHONPATH=tests .venv/bin/python benchmarks/staleness.py --seeds 0 1 2 --levels none sequence

Rollout is as many steps ahead as `--staleness`, and the engine draws every tenth token from the whole vocabulary
(`support.perturbed_engine`). The task (`support.tasks.Guesses`) rewards a quarter of all guesses, and each call of a
tool that is written without a fault: which of them pays differs between the engine's policy and the trainer's.
Validations take the most probable tokens, which the perturbation leaves as they are.
"""

import argparse
import time
from pathlib import Path

from runs import measure, table

EXAMPLE = Path("manifests/examples/tool-arithmetic-cpu.yaml")
EXTENSION = "actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--levels", nargs="+", default=["none", "token", "sequence"], help="levels of the correction")
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--job", type=Path, default=EXAMPLE)
    parser.add_argument("--set", action="append", default=[], dest="settings", help="further settings of the job")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/staleness"))
    options = parser.parse_args()
    folder = options.output / str(int(time.time()))
    rows = []
    for seed in options.seeds:
        for level in options.levels:
            settings = [
                "training.mode=colocate_async",
                f"training.maxStaleness={options.staleness}",
                f"training.seed={seed}",
                f"algorithm.rolloutCorrection.importanceSampling={level}",
                f"verl={{{EXTENSION}: support.perturbed_engine.PerturbedWorker}}",
                "environment.name=support.tasks:Guesses",
                "algorithm.actorLearningRate=1e-3",
                "algorithm.rolloutCorrection.threshold=8",
                "training.steps=30",
                "training.validation.temperature=0",
                *options.settings,
            ]
            arguments = [argument for each in settings for argument in ("--set", each)]
            end = measure(options.job, folder / f"{level}-{seed}", *arguments)
            success = [end.summary.get(f"success_{when}", float("nan")) for when in ("first", "final")]
            rows.append([seed, level, end.exit_code, *(f"{share:.3f}" for share in success), f"{end.seconds:.0f}"])
            print(table(["seed", "correction", "exit code", "before", "after", "s"], rows), flush=True)


if __name__ == "__main__":
    main()

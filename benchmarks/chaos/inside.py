"""One run in namespaces of its own: starts a system, watches it, injects a fault, and writes down what happened.

`contained` starts it; its namespace's first process is a shell that waits for it, and all others end with that.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from chaos import processes
from chaos.effects import EFFECTS_VARIABLE
from chaos.faults import UNDISTURBED, Fault, chance, draws, fault, lasting, repeated
from chaos.injection import LOOK_SECONDS, Injector, clock_variables
from chaos.measures import Record
from chaos.proxy import ToolProxy
from chaos.store import FaultyStore, WatchedStore, WiredStore
from chaos.systems import CADENCE_RETRIES, RETRIES, Given, System, faults_of, system

from support.contained_tests import bring_loopback_up
from turnmill.core.ports import free_port

FIND_SECONDS = 60.0
RUN_SPACE = "400m"
ROOT = Path(__file__).resolve().parents[2]
COLOUR = re.compile(r"\x1b\[\d+m")


class Run:
    """A run of a system that is watched."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.system: System = system(options.system)
        self.fault: Fault = fault(options.fault)
        self.faults = repeated(options.fault, faults_of(options.system)) if options.every else [self.fault]
        """Faults that may come."""

        self.chance = chance(options.fault, options.seed)
        self.folder: Path = options.folder
        self.effects: Path = options.output / "effects.jsonl"
        self.options = options
        self.proxy: ToolProxy | None = None
        self.store: WiredStore | None = None
        self.steps: list[float] = []
        self.first_effect: float | None = None
        self.injected: list[float] = []
        self.kinds: list[str] = []
        self._begun = time.monotonic()
        self._ended = threading.Event()

    def record(self) -> Record:
        """Run to the end, or to the end of patience."""
        os.environ[EFFECTS_VARIABLE] = str(self.effects)
        if self.fault.name == "clock step" or self.options.repeats:
            os.environ.update(clock_variables())
        given = self._given()
        self._injector = Injector(self.system, self.folder, self.chance, self.proxy, self.store)
        command, variables = self.system.command(given)
        with (self.options.output / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            threading.Thread(target=self._hurt, daemon=True).start()
            silent = self._watch(process)
        code = process.poll()
        seconds = self._now()
        self._ended.set()
        lines = [json.loads(line) for line in self.effects.read_text().splitlines()] if self.effects.exists() else []
        return Record(
            exit_code=code,
            silent_seconds=silent,
            seconds=seconds,
            first_effect=self.first_effect,
            steps=self.steps,
            faults=self.injected,
            kinds=self.kinds,
            step_times=self.system.step_times(self.folder),
            effects=[(self.system.name_of(line["trajectory"]), line["call"], line["key"]) for line in lines],
            played=self.system.played(self.folder),
            note="" if code == 0 else self._last_words(),
            unanswered=sorted(map(self.system.name_of, self.proxy.unanswered if self.proxy else ())),
        )

    def _last_words(self) -> str:
        """Return the line of the output that says most about a failure."""
        lines = (self.options.output / "output.txt").read_text(errors="replace").splitlines()
        telling = [line for line in lines if re.search(r"^The run failed|Error: |Error\b.*:", line)]
        return COLOUR.sub("", telling[-1]).strip()[:200] if telling else ""

    def _now(self) -> float:
        return time.monotonic() - self._begun

    def _given(self) -> Given:
        options = self.options
        store_url = self._start_store() if self.fault.needs_store or options.repeats else ""
        tools_url = self._start_tools(store_url)
        model_url = self._serve("model-server", self.system.model_server) if self.system.model_server else ""
        return Given(
            self.folder,
            options.steps,
            seed=0,
            tools_url=tools_url,
            model_url=model_url,
            store_url=store_url,
            retries=CADENCE_RETRIES if options.repeats else RETRIES,
        )

    def _start_store(self) -> str:
        """Start a store in the hands of the benchmark, if the system has one at all."""
        if "store" not in self.system.parts:
            return ""
        folder = self.folder / "store-of-benchmark"
        # What a store has lost can be chosen by the benchmark alone, which then starts it again itself.
        watched = self.options.repeats and self.fault.name != "store tail lost"
        self.store = WatchedStore(folder) if watched else FaultyStore(folder)
        return self.store.start()

    def _start_tools(self, store_url: str) -> str:
        """Start a tool server, unless the run starts one that nothing comes between."""
        needs_proxy = self.fault.needs_proxy or self.options.repeats
        if self.system.starts_tool_server and not needs_proxy:
            return ""
        # A store that is never hurt: tools need one even if the run has its own.
        store_url = store_url or self._start_store()
        url = self.system.serve_tools(store_url, self.options.output) if self.options.repeats else ""
        url = url or self._serve("tool-server", self.system.tool_server, store_url)
        if needs_proxy:
            self.proxy = ToolProxy(url, self.chance)
            url = self.proxy.start()
        return url

    def _serve(self, name: str, command: Sequence[str], store_url: str = "") -> str:
        """Start a server on a free port, and again whenever it ends; return its address."""
        port = free_port()
        words = [word.format(port=port, store=store_url) for word in command]
        threading.Thread(target=self._keep_serving, args=(name, words), daemon=True).start()
        return f"http://127.0.0.1:{port}"

    def _keep_serving(self, name: str, command: Sequence[str]) -> None:
        with (self.options.output / f"{name}.txt").open("wb") as output:
            while not self._ended.is_set():
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    check=False,
                )
                time.sleep(0.2)

    def _watch(self, process: subprocess.Popen[bytes]) -> float:
        """Wait for the end; return how long there had been no progress."""
        moved, size = self._now(), 0
        while True:
            code = process.poll()
            steps = self.system.steps(self.folder)
            grown = self.effects.stat().st_size if self.effects.exists() else 0
            now = self._now()
            if grown > size or steps > len(self.steps):
                moved, size = now, grown
            if grown and self.first_effect is None:
                self.first_effect = now
            self.steps += [now] * (steps - len(self.steps))
            # Starting is no training, and takes as long as the machine has other work.
            patience = self.options.hang_seconds if self.injected else self.options.longest
            if code is not None or now - moved >= patience or now >= self.options.longest:
                return now - moved
            time.sleep(LOOK_SECONDS)

    def _hurt(self) -> None:
        """Wait for the training to begin, and hurt it, once or again and again."""
        if lasts := self.fault.name == "calls fail" and not self.options.every:
            # For the whole run, which has its first call behind it when the fault is noted.
            self._injector.inject(self.fault, seconds=0, patience=0)
        while self.first_effect is None:
            time.sleep(LOOK_SECONDS / 2)
        begun = self._now()
        if self.options.every:
            self._repeat(begun)
        elif lasts:
            self._note(self.fault)
        elif self.fault.name != UNDISTURBED:
            time.sleep(self.options.moment)
            if self._injector.inject(self.fault, seconds=self.fault.seconds, patience=FIND_SECONDS):
                self._note(self.fault)

    def _repeat(self, begun: float) -> None:
        """Inject a fault in each interval, the first of its draw that finds something to hurt."""
        every = self.options.every
        for moment, drawn in draws(self.options.seed, every, self.faults):
            if self._ended.wait(max(0.0, begun + moment - self._now())):
                return
            for each in drawn:
                if self._injector.inject(each, seconds=lasting(each, every), patience=0):
                    self._note(each)
                    break

    def _note(self, fault: Fault) -> None:
        self.injected.append(self._now())
        self.kinds.append(fault.name)
        print(f"{self.injected[-1]:.1f} s: {fault.name}", flush=True)


def _mount(folder: Path, size: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", folder], check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, and write the record into the output folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", required=True)
    parser.add_argument("--fault", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--moment", type=float, required=True)
    parser.add_argument("--repeats", action="store_true", help="set all up that faults hurt which come again and again")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two faults of the group `--fault`")
    parser.add_argument("--hang-seconds", type=float, required=True)
    parser.add_argument("--longest", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    processes.require_own_namespace()
    bring_loopback_up()
    for folder, size in ((Path("/dev/shm"), "2g"), (Path("/tmp"), "4g"), (options.folder, RUN_SPACE)):
        if not any(needed.resolve().is_relative_to(folder) for needed in (ROOT, Path(sys.prefix), options.output)):
            _mount(folder, size)
    record = Run(options).record()
    # The file system of the run goes with its namespace.
    for logs in options.folder.glob("run/logs"):
        shutil.copytree(logs, options.output / "logs", ignore_dangling_symlinks=True)
    for metrics in options.folder.glob("run/metrics.jsonl"):
        shutil.copy(metrics, options.output)
    (options.output / "record.json").write_text(json.dumps(asdict(record)))
    os._exit(0)


if __name__ == "__main__":
    main()

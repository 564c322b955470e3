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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from chaos import processes
from chaos.effects import EFFECTS_VARIABLE
from chaos.faults import Fault, chance, fault
from chaos.measures import Record
from chaos.proxy import ToolProxy
from chaos.store import FaultyStore
from chaos.systems import Given, System, system

from support.contained_tests import bring_loopback_up
from turnmill.core.ports import free_port

LOOK_SECONDS = 0.1
SLOW_ANSWER_SECONDS = 0.2
FIND_SECONDS = 60.0
CLOCK_STEP_SECONDS = 3600
CLOCK = Path("/dev/shm/clock")
RUN_SPACE = "400m"
ROOT = Path(__file__).resolve().parents[2]
COLOUR = re.compile(r"\x1b\[\d+m")


class Run:
    """A run of a system that is watched."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.system: System = system(options.system)
        self.fault: Fault = fault(options.fault)
        self.chance = chance(options.fault, options.seed)
        self.folder: Path = options.folder
        self.effects: Path = options.output / "effects.jsonl"
        self.options = options
        self.proxy: ToolProxy | None = None
        self.store: FaultyStore | None = None
        self.steps: list[float] = []
        self.first_effect: float | None = None
        self.injected: list[float] = []
        self._begun = time.monotonic()
        self._ended = threading.Event()

    def record(self) -> Record:
        """Run to the end, or to the end of patience."""
        given = self._given()
        command, variables = self.system.command(given)
        with (self.options.output / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | {EFFECTS_VARIABLE: str(self.effects)} | variables | self._clock(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            threading.Thread(target=self._inject, daemon=True).start()
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
            effects=[(self.system.name_of(line["trajectory"]), line["call"], line["key"]) for line in lines],
            played=self.system.played(self.folder),
            note="" if code == 0 else self._last_words(),
        )

    def _last_words(self) -> str:
        """Return the line of the output that says most about a failure."""
        lines = (self.options.output / "output.txt").read_text(errors="replace").splitlines()
        telling = [line for line in lines if re.search(r"^The run failed|Error: |Error\b.*:", line)]
        return COLOUR.sub("", telling[-1]).strip()[:200] if telling else ""

    def _now(self) -> float:
        return time.monotonic() - self._begun

    def _given(self) -> Given:
        store_url = tools_url = ""
        if self.fault.needs_store:
            self.store = FaultyStore(self.folder / "store-of-benchmark")
            store_url = self.store.start()
        if self.fault.needs_proxy or not self.system.starts_tool_server:
            if "{store}" in self.system.tool_server and not store_url:
                # One that is never hurt: tools need a store even if the run has its own.
                self.store = FaultyStore(self.folder / "store-of-benchmark")
                store_url = self.store.start()
            tools_url = self._serve("tool-server", self.system.tool_server, store_url)
            if self.fault.needs_proxy:
                self.proxy = ToolProxy(tools_url, self.chance)
                tools_url = self.proxy.start()
        model_url = self._serve("model-server", self.system.model_server) if self.system.model_server else ""
        return Given(
            self.folder, self.options.steps, seed=0, tools_url=tools_url, model_url=model_url, store_url=store_url
        )

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
                    env=os.environ | {EFFECTS_VARIABLE: str(self.effects)},
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

    def _inject(self) -> None:
        """Wait for the moment, and do what the fault does."""
        if self.fault.name == "calls fail":
            assert self.proxy is not None
            self.proxy.fails_calls = True
        while self.first_effect is None:
            time.sleep(LOOK_SECONDS / 2)
        if self.fault.name == "calls fail":
            self.injected.append(self._now())
            return
        time.sleep(self.options.moment)
        if self.fault.name == "transfer cut":
            self._wait_for_transfer()
        if self.fault.signal:
            found = self._targets()
            processes.send(found, self.fault.signal)
            if found:
                self.injected.append(self._now())
        elif self.fault.name != "none":
            self.injected.append(self._now())
            self._do()

    def _targets(self) -> list[int]:
        """Return the process that is to get the signal, chosen by chance among several; wait for one."""
        deadline = self._now() + FIND_SECONDS
        while self._now() < deadline:
            if found := self.system.processes(self.fault.part):
                return [self.chance.choice(found)]
            time.sleep(LOOK_SECONDS)
        return []

    def _wait_for_transfer(self) -> None:
        """Wait until weights lie in shared memory on their way to an engine."""
        memory = Path("/dev/shm")
        while not any(memory.glob("psm_*")):
            time.sleep(0.001)

    def _do(self) -> None:
        match self.fault.name:
            case "store slow":
                self._for_a_while(lambda: self._store.delay(SLOW_ANSWER_SECONDS), lambda: self._store.delay(0))
            case "store cut":
                self._for_a_while(self._store.cut, self._store.connect)
            case "store tail lost":
                self._store.lose_tail(self.chance)
            case "call unanswered":
                assert self.proxy is not None
                self.proxy.silences_next = True
            case "disk full":
                filler = self.folder / "filler"
                self._for_a_while(lambda: _fill(filler), filler.unlink)
            case "clock step":
                step = self.chance.choice((-1, 1)) * CLOCK_STEP_SECONDS
                _set_clock(step)

    def _for_a_while(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        time.sleep(self.fault.seconds)
        end()

    @property
    def _store(self) -> FaultyStore:
        assert self.store is not None
        return self.store

    def _clock(self) -> dict[str, str]:
        if self.fault.name != "clock step":
            return {}
        _set_clock(0)
        library = CLOCK.with_suffix(".so")
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(CLOCK)}


def _set_clock(seconds: int) -> None:
    if not CLOCK.exists():
        CLOCK.write_bytes(bytes(8))
    with CLOCK.open("r+b") as file:
        file.write(seconds.to_bytes(8, sys.byteorder, signed=True))


def _fill(filler: Path) -> None:
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"0")


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
    for logs in options.folder.glob("run/logs"):
        # The file system of the run goes with its namespace.
        shutil.copytree(logs, options.output / "logs", ignore_dangling_symlinks=True)
    (options.output / "record.json").write_text(json.dumps(asdict(record)))
    os._exit(0)


if __name__ == "__main__":
    main()

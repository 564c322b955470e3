"""What is done to a run: signals to its processes, and what its store, its calls, its disk and its clock suffer."""

import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from chaos import processes
from chaos.faults import Fault
from chaos.proxy import ToolProxy
from chaos.store import FaultyStore, WiredStore
from chaos.systems import System

from turnmill.core.activity import is_stopped

LOOK_SECONDS = 0.1
SLOW_ANSWER_SECONDS = 0.2
CLOCK_STEP_SECONDS = 3600
CLOCK = Path("/dev/shm/clock")
PartT = TypeVar("PartT")


class Injector:
    """Does what faults do to a run."""

    def __init__(
        self, system: System, folder: Path, chance: random.Random, proxy: ToolProxy | None, store: WiredStore | None
    ) -> None:
        self._system = system
        self._folder = folder
        self._chance = chance
        self._proxy = proxy
        self._store = store
        self._clock = 0
        self._present: set[str] = set()
        """Faults that have begun and not ended."""

    def inject(self, fault: Fault, *, seconds: float, patience: float) -> bool:
        """Begin a fault that lasts so long; return whether it found something to hurt, for which it waits."""
        if fault.name == "transfer cut":
            _wait_for_transfer()
        if fault.signal:
            return self._send(fault, patience)
        if fault.name in self._present:
            return False
        if seconds:
            self._present.add(fault.name)
            threading.Thread(target=self._for_a_while, args=(fault, seconds), daemon=True).start()
        else:
            self._begin(fault)
        return True

    def _send(self, fault: Fault, patience: float) -> bool:
        """Send a signal to a process, chosen by chance among several."""
        deadline = time.monotonic() + patience
        while not (found := [pid for pid in self._system.processes(fault.part) if not is_stopped(pid)]):
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_SECONDS)
        processes.send([self._chance.choice(found)], fault.signal)
        return True

    def _for_a_while(self, fault: Fault, seconds: float) -> None:
        self._begin(fault)
        time.sleep(seconds)
        self._end(fault)
        self._present.discard(fault.name)

    def _begin(self, fault: Fault) -> None:
        match fault.name:
            case "store slow":
                self._given(self._store).delay(SLOW_ANSWER_SECONDS)
            case "store cut":
                self._given(self._store).cut()
            case "store tail lost":
                assert isinstance(self._store, FaultyStore)
                self._store.lose_tail(self._chance)
            case "calls fail":
                self._given(self._proxy).fails_calls = True
            case "call unanswered":
                self._given(self._proxy).silences_next = True
            case "disk full":
                _fill(self._filler)
            case "clock step":
                steps = (-CLOCK_STEP_SECONDS, 0, CLOCK_STEP_SECONDS)
                self._clock = self._chance.choice([step for step in steps if step != self._clock])
                set_clock(self._clock)

    def _end(self, fault: Fault) -> None:
        match fault.name:
            case "store slow":
                self._given(self._store).delay(0)
            case "store cut":
                self._given(self._store).connect()
            case "calls fail":
                self._given(self._proxy).fails_calls = False
            case "disk full":
                self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self._folder / "filler"

    @staticmethod
    def _given(part: PartT | None) -> PartT:
        assert part is not None
        return part


def clock_variables() -> dict[str, str]:
    """Return the variables of processes whose time of day can jump."""
    set_clock(0)
    library = CLOCK.with_suffix(".so")
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(CLOCK)}


def set_clock(seconds: int) -> None:
    """Set the clock so many seconds forward, or back."""
    if not CLOCK.exists():
        CLOCK.write_bytes(bytes(8))
    with CLOCK.open("r+b") as file:
        file.write(seconds.to_bytes(8, sys.byteorder, signed=True))


def _wait_for_transfer() -> None:
    """Wait until weights lie in shared memory on their way to an engine; the name is verl's."""
    while not any(Path("/dev/shm").glob("verl_weights_*")):
        time.sleep(0.001)


def _fill(filler: Path) -> None:
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"0")

"""An environment that misbehaves on request."""

import os
import socket
import subprocess
import threading
from typing import ClassVar, Literal

import numpy as np

from turnmill.environments.base import Environment, EnvironmentOptions, StepResult

Misbehaviour = Literal[
    "none", "raises", "hangs", "exits", "is_killed", "prints", "sends_garbage", "sends_too_much",
    "leaves_a_child", "takes_memory", "leaks", "gives_nan", "sends_the_wrong_object",
]  # fmt: skip
"""What the environment does in place of its work."""


_leaked: list[np.ndarray] = []


class HostileOptions(EnvironmentOptions):
    """Options of `Hostile`."""

    on_make: Misbehaviour = "none"
    """Misbehaviour when it is created."""

    on_reset: Misbehaviour = "none"
    """Misbehaviour at a reset."""

    on_prepare: Misbehaviour = "none"
    """Misbehaviour when the next reset is prepared."""

    on_step: Misbehaviour = "none"
    """Misbehaviour at a step with the action `misbehave`."""


class Hostile(Environment):
    """Counts its steps, and misbehaves at the action `misbehave`."""

    name: ClassVar[str] = "hostile"
    Settings: ClassVar[type[EnvironmentOptions]] = HostileOptions
    actions = ("look", "win", "misbehave")
    default_action = "look"

    def __init__(self, task: str | None, max_turns: int, options: HostileOptions) -> None:
        super().__init__(task, max_turns, options)
        self.misbehave = options
        self.num_steps = 0
        self.seed = 0
        self.prepared = ""
        _misbehave(options.on_make)

    def prepare(self, seed: int) -> None:
        """Show in the next observations which reset is prepared."""
        _misbehave(self.misbehave.on_prepare)
        self.prepared = f" prepared {seed}"

    def reset(self, seed: int) -> str:
        """Start counting."""
        _misbehave(self.misbehave.on_reset)
        self.seed, self.num_steps = seed, 0
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Count one step; `win` ends the episode with half a reward."""
        self.num_steps += 1
        if action == "misbehave":
            _misbehave(self.misbehave.on_step)
            if self.misbehave.on_step == "gives_nan":
                return StepResult(self._observation(), reward=float("nan"))
        won = action == "win"
        return StepResult(self._observation(), reward=0.5 if won else 0.0, terminated=won)

    def instruction_prompt(self) -> str:
        """Return a short instruction with the number of steps."""
        return f"Count. You stand at {self.num_steps}."

    def compact_prompt(self) -> str:
        """Return the goal."""
        return "goal: count"

    def render(self) -> np.ndarray:
        """Draw a grey square, lighter with every step."""
        return np.full((8, 8, 3), self.num_steps * 10, dtype=np.uint8)

    def _observation(self) -> str:
        return f"seed {self.seed} step {self.num_steps}{self.prepared}"


def _misbehave(misbehaviour: Misbehaviour) -> None:
    match misbehaviour:
        case "raises":
            raise ValueError("it hurts")
        case "hangs":
            threading.Event().wait()
        case "exits":
            os._exit(3)
        case "is_killed":
            os.abort()
        case "prints":
            print("noise " * 10_000, flush=True)
        case "leaves_a_child":
            subprocess.Popen(["sleep", "600"])
            os._exit(0)
        case "takes_memory":
            np.ones(2**30, dtype=np.uint8)
        case "leaks":
            _leaked.append(np.ones(2**26, dtype=np.uint8))
        case "sends_garbage":
            _find_socket().sendall(b"\0\0\0\7garbage")
        case "sends_too_much":
            _find_socket().sendall(b"\xff\xff\xff\xff")
        case "sends_the_wrong_object":
            _find_socket().sendall(b'\0\0\0\x11{"result": "yes"}')


def _find_socket() -> socket.socket:
    for descriptor in range(3, 64):
        try:
            return socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
    raise AssertionError("An environment process without a socket")

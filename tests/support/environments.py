"""Environments for tests: one that behaves and some that do not."""

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
"""What an environment may do instead of answering."""


_leaked: list[np.ndarray] = []


class HostileOptions(EnvironmentOptions):
    """Options of `Hostile`."""

    on_make: Misbehaviour = "none"
    """What it does when it is made."""

    on_reset: Misbehaviour = "none"
    """What it does at a reset."""

    on_prepare: Misbehaviour = "none"
    """What it does where the reset after this one is prepared."""

    on_step: Misbehaviour = "none"
    """What it does at a step whose action is `hurt`."""


class Hostile(Environment):
    """Counts its steps, until it is told to hurt."""

    name: ClassVar[str] = "hostile"
    Settings: ClassVar[type[EnvironmentOptions]] = HostileOptions
    actions = ("look", "win", "hurt")
    default_action = "look"

    def __init__(self, task: str | None, max_turns: int, options: HostileOptions) -> None:
        super().__init__(task, max_turns, options)
        self.misbehave = options
        self.num_steps = 0
        self.seed = 0
        self.prepared = ""
        _do(options.on_make)

    def prepare(self, seed: int) -> None:
        """Tell with the next observations which reset is prepared."""
        _do(self.misbehave.on_prepare)
        self.prepared = f" prepared {seed}"

    def reset(self, seed: int) -> str:
        """Begin to count."""
        _do(self.misbehave.on_reset)
        self.seed, self.num_steps = seed, 0
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Count one step; `win` ends the episode with half a reward."""
        self.num_steps += 1
        if action == "hurt":
            _do(self.misbehave.on_step)
            if self.misbehave.on_step == "gives_nan":
                return StepResult(self._observation(), reward=float("nan"))
        won = action == "win"
        return StepResult(self._observation(), reward=0.5 if won else 0.0, terminated=won)

    def instruction_prompt(self) -> str:
        """Explain nothing."""
        return f"Count. You stand at {self.num_steps}."

    def compact_prompt(self) -> str:
        """Say less."""
        return "goal: count"

    def render(self) -> np.ndarray:
        """Draw a grey square, lighter with every step."""
        return np.full((8, 8, 3), self.num_steps * 10, dtype=np.uint8)

    def _observation(self) -> str:
        return f"seed {self.seed} step {self.num_steps}{self.prepared}"


def _do(misbehaviour: Misbehaviour) -> None:
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
            _reach_for_the_socket().sendall(b"\0\0\0\7garbage")
        case "sends_too_much":
            _reach_for_the_socket().sendall(b"\xff\xff\xff\xff")
        case "sends_the_wrong_object":
            _reach_for_the_socket().sendall(b'\0\0\0\x11{"result": "yes"}')


def _reach_for_the_socket() -> socket.socket:
    for descriptor in range(3, 64):
        try:
            return socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
    raise AssertionError("An environment process without a socket")

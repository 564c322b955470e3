"""What a tool and a reward do in every system; standard library only, as other systems have Pythons of their own."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

EFFECTS_VARIABLE = "CHAOS_EFFECTS"
"""Environment variable with the file to which each call of the tool adds a line."""

TOOL_SECONDS = 0.4
CALL_SECONDS = 5.0
"""How long the work on a call may take, in every system."""

TURNS = 4
"""Calls of a trajectory."""


def reward_of(text: str) -> float:
    """Return a number between 0 and 1 by a hash of all that was said in a conversation."""
    return int(hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), 16) % 1000 / 999


def digest_of(said: Sequence[str]) -> str:
    """Return what stands for all that was said in a conversation."""
    return hashlib.blake2b(json.dumps(list(said)).encode(), digest_size=8).hexdigest()


def take_effect(trajectory: str, call: int, key: str) -> None:
    """Note a call's effect, which cannot be undone, as it would be asked of a service that knows idempotency keys."""
    line = json.dumps({"trajectory": trajectory, "call": call, "key": key})
    with Path(os.environ[EFFECTS_VARIABLE]).open("a") as file:
        file.write(f"{line}\n")

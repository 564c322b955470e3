"""What an answer to a task of a data set is worth: by name, or a function of one's own."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object
from turnmill.tasks.base import Answer

Reward = Callable[[Answer, Any, Mapping[str, Any]], float]
"""Takes the answer, the truth and the task's `extra_info`."""


def find(name: str) -> Reward:
    """The function of that name; raises SettingsError where there is none."""
    if name == "math_verify":
        return _math_verify()
    if name.partition(":")[0] == "verl":
        return _of_verl(name.partition(":")[2])
    if name in BY_NAME:
        return BY_NAME[name]
    try:
        reward: Reward = import_object(name)
    except ImportError as error:
        raise SettingsError(
            f"environment.options.reward: {name!r} is no reward: {error}. "
            f"Choose one of {', '.join([*BY_NAME, 'math_verify', 'verl'])}, "
            "or name a function as package.module:function."
        ) from error
    return reward


def exact_match(answer: Answer, truth: Any, extra_info: Mapping[str, Any]) -> float:
    """1 where the last response is the truth, spaces around it aside."""
    return float(answer.last.strip() == str(truth).strip())


def boxed_match(answer: Answer, truth: Any, extra_info: Mapping[str, Any]) -> float:
    """1 where the last `\\boxed{...}` of the responses holds the truth, spaces aside."""
    found = last_boxed(answer.responses)
    return float(found is not None and "".join(found.split()) == "".join(str(truth).split()))


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` of a text holds; None where there is none, or no end of it."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin, depth = start + len("\\boxed{"), 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return None


BY_NAME: dict[str, Reward] = {"exact_match": exact_match, "boxed_match": boxed_match}


def _math_verify() -> Reward:
    """Compares as mathematics, not as text, what the responses end with."""
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise SettingsError(
            "environment.options.reward: math_verify needs a package. Install `math-verify`, or choose boxed_match."
        ) from error

    def reward(answer: Answer, truth: Any, extra_info: Mapping[str, Any]) -> float:
        # Its own time limits use signals, which only a main thread gets.
        gold = parse(f"\\boxed{{{truth}}}", parsing_timeout=None)
        said = parse(answer.responses, parsing_timeout=None)
        return float(verify(gold, said, timeout_seconds=None))

    return reward


def _of_verl(path: str) -> Reward:
    """A function in verl's form, which takes the whole text: verl's own choice by data source, or one in a file."""
    try:
        if path:
            file, _, function = path.rpartition(":")
            score = import_module("verl.utils.import_utils").load_extern_object(file, function)
        else:
            score = import_module("verl.utils.reward_score").default_compute_score
    except (ImportError, AttributeError, FileNotFoundError, RuntimeError, ValueError) as error:
        raise SettingsError(
            f"environment.options.reward: verl:{path} cannot be loaded: {error}. "
            "Write verl, or verl:FILE:function, where FILE is a .py file or pkg://package.module."
        ) from error

    def reward(answer: Answer, truth: Any, extra_info: Mapping[str, Any]) -> float:
        told = score(
            data_source=extra_info.get("data_source", ""),
            solution_str=answer.whole,
            ground_truth=truth,
            extra_info=dict(extra_info),
        )
        return float(told["score"] if isinstance(told, Mapping) else told)

    return reward

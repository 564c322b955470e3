"""Rewards of answers to tasks of a data set, by name or by import path."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object
from turnmill.tasks.base import Answer

Reward = Callable[[Answer, Any, Mapping[str, Any]], float]
"""Function of the answer, the correct answer and the task's `extra_info`."""

Prediction = Callable[[Answer, object, Mapping[str, object]], str | None]
"""Function with the same arguments that returns what an answer says; None if answers cannot be compared."""


def find(name: str) -> Reward:
    """Return the reward function of a name. Raises SettingsError if there is none or its package is missing."""
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
            f"environment.options.reward: {name!r} is not a reward: {error}. "
            f"Choose one of {', '.join([*BY_NAME, 'math_verify', 'verl'])}, "
            "or name a function as package.module:function."
        ) from error
    return reward


def exact_match(answer: Answer, truth: Any, extra_info: Mapping[str, Any]) -> float:
    """Return 1 if the last response equals the correct answer, ignoring surrounding whitespace."""
    return float(answer.last.strip() == str(truth).strip())


def boxed_match(answer: Answer, truth: Any, extra_info: Mapping[str, Any]) -> float:
    """Return 1 if the last `\\boxed{...}` of the responses contains the correct answer, ignoring whitespace."""
    found = last_boxed(answer.responses)
    return float(found is not None and "".join(found.split()) == "".join(str(truth).split()))


def last_boxed(text: str) -> str | None:
    """Return the content of the last `\\boxed{...}` of a text, or None if there is none or it is not closed."""
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
    """Create a reward that compares the last expression of the responses mathematically."""
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise SettingsError(
            "environment.options.reward: math_verify needs the package `math-verify`. Install it, or choose "
            "boxed_match."
        ) from error

    def reward(answer: Answer, truth: Any, extra_info: Mapping[str, Any]) -> float:
        # Its own time limits use signals, which only the main thread receives.
        gold = parse(f"\\boxed{{{truth}}}", parsing_timeout=None)
        given = parse(answer.responses, parsing_timeout=None)
        return float(verify(gold, given, timeout_seconds=None))

    return reward


def find_prediction(name: str) -> Prediction:
    """Return the function that gives the vote of an answer, for a reward that `find` has found."""
    if name.partition(":")[0] == "verl":
        return _prediction_of_verl(name.partition(":")[2])
    return PREDICTIONS.get(name, lambda answer, truth, extra_info: None)


def _boxed_prediction(answer: Answer, truth: object, extra_info: Mapping[str, object]) -> str:
    return "".join((last_boxed(answer.responses) or "").split())


def _whole_prediction(answer: Answer, truth: object, extra_info: Mapping[str, object]) -> str:
    return answer.last.strip()


PREDICTIONS: dict[str, Prediction] = {
    "exact_match": _whole_prediction,
    "boxed_match": _boxed_prediction,
    "math_verify": _boxed_prediction,
}


def _of_verl(path: str) -> Reward:
    """Adapt a reward of verl, which takes the whole text: its default by data source, or a function in a file."""
    score = _score_of_verl(path)

    def reward(answer: Answer, truth: Any, extra_info: Mapping[str, Any]) -> float:
        result = score(answer, truth, extra_info)
        return float(result["score"] if isinstance(result, Mapping) else result)  # type: ignore[arg-type]

    return reward


def _prediction_of_verl(path: str) -> Prediction:
    """Return verl's `pred`, by which verl and verl-tool count votes; None if the reward returns a number alone."""
    score = _score_of_verl(path)

    def prediction(answer: Answer, truth: object, extra_info: Mapping[str, object]) -> str | None:
        result = score(answer, truth, extra_info)
        pred = result.get("pred") if isinstance(result, Mapping) else None
        return None if pred is None else str(pred)

    return prediction


def _score_of_verl(path: str) -> Callable[[Answer, object, Mapping[str, object]], object]:
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
    return lambda answer, truth, extra_info: score(
        data_source=extra_info.get("data_source", ""),
        solution_str=answer.whole,
        ground_truth=truth,
        extra_info=dict(extra_info),
    )

import pytest

from turnmill.rollout.verlog.memory import Memory
from turnmill.rollout.verlog.prompts import build_messages, requires_marker

COT = (
    "\n\nWhat will you do next? Answer in two lines:\n"
    "THINK: your reasoning, step by step.\n"
    "ACTION: one of the allowed actions, in its exact words, and nothing after it."
)
NAIVE = "\n\nWhat will you do next? Answer with one of the allowed actions, in its exact words, and nothing else."


def memory(*, text_turns: int, thought_turns: int = 1) -> Memory:
    filled = Memory(text_turns=text_turns, thought_turns=thought_turns)
    filled.begin("a wall")
    filled.remember(response="THINK: hm ACTION: fly", action="go forward", observation="a key")
    filled.remember(response="THINK: ah ACTION: pick up", action="pick up", observation="You carry a key")
    return filled


def build(template: str, **window: int) -> list[tuple[str, str]]:
    messages = build_messages(
        memory(**window), template=template, instruction_prompt="You are an agent.", compact_prompt="goal: win"
    )
    return [(message["role"], message["content"]) for message in messages]


@pytest.mark.feature("Verlog", "prompts `cot` and `naive`")
def test_cot_shows_the_last_plan_and_asks_for_thought_and_action():
    assert build("cot", text_turns=1) == [
        ("system", "You are an agent."),
        ("user", "Observation:\na key"),
        ("assistant", "Previous plan:\nTHINK: ah ACTION: pick up"),
        ("user", "Current Observation:\nYou carry a key" + COT),
    ]


@pytest.mark.feature("Verlog", "memory of thoughts")
def test_of_older_turns_only_the_executed_action_is_shown():
    assert build("cot", text_turns=2) == [
        ("system", "You are an agent."),
        ("user", "Observation:\na wall"),
        ("assistant", "go forward"),
        ("user", "Observation:\na key"),
        ("assistant", "Previous plan:\nTHINK: ah ACTION: pick up"),
        ("user", "Current Observation:\nYou carry a key" + COT),
    ]


@pytest.mark.feature("Verlog", "prompts `cot` and `naive`")
def test_naive_asks_only_for_an_action():
    assert build("naive", text_turns=1, thought_turns=0) == [
        ("system", "You are an agent."),
        ("user", "Observation:\na key"),
        ("assistant", "pick up"),
        ("user", "Current Observation:\nYou carry a key" + NAIVE),
    ]


def test_compact_adds_no_text():
    assert build("compact", text_turns=2, thought_turns=2) == [
        ("system", "goal: win"),
        ("user", "a wall"),
        ("assistant", "THINK: hm ACTION: fly"),
        ("user", "a key"),
        ("assistant", "THINK: ah ACTION: pick up"),
        ("user", "You carry a key"),
    ]


def test_without_memory_the_prompt_has_the_current_observation_only():
    assert build("compact", text_turns=0) == [("system", "goal: win"), ("user", "You carry a key")]


@pytest.mark.parametrize(("template", "required"), [("cot", False), ("compact", True), ("naive", False)])
def test_the_prompts_of_verlog_accept_an_action_without_marker(template, required):
    assert requires_marker(template) is required

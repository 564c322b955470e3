import pytest

from turnmill.core.errors import SettingsError
from turnmill.environments.registry import allowed_actions
from turnmill.rollout.verlog.memory import Memory
from turnmill.rollout.verlog.prompts import Message, build_messages, load_function, question, requires_marker

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


@pytest.mark.feature("Verlog", "its templates by name")
def test_the_allowed_actions_may_be_listed_as_for_babaisai():
    messages = build_messages(
        memory(text_turns=0), template="cot_actions", instruction_prompt="", compact_prompt="", actions=("idle", "up")
    )

    assert messages[-1]["content"].endswith("\nACTION: one of these actions, and nothing after it: idle, up.")


@pytest.mark.feature("Verlog", "its templates by name")
def test_the_template_of_the_document_has_no_titles():
    assert build("document", text_turns=2) == [
        ("system", "You are an agent."),
        ("user", "a wall"),
        ("assistant", "go forward"),
        ("user", "a key"),
        ("assistant", "THINK: ah ACTION: pick up"),
        ("user", "You carry a key" + COT),
    ]


@pytest.mark.feature("Verlog", "its templates by name")
@pytest.mark.parametrize("name", ["babaisai", "babyai", "crafter"])
def test_the_environments_of_verlog_have_a_list_of_actions(name):
    assert len(allowed_actions(name)) >= 5


def test_an_environment_without_a_fixed_list_of_actions_is_refused_before_the_run():
    with pytest.raises(SettingsError, match="textworld has no fixed list of actions"):
        allowed_actions("textworld")


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


def cleared_every_two_turns(memory: Memory, instructions: str) -> list[Message]:
    """Build a prompt whose history is cleared every two turns: Verlog's document tried that with five."""
    since = memory.num_turns % 2
    lines = [f"{turn.observation} > {turn.action}" for turn in memory.turns[len(memory.turns) - since :]]
    return [{"role": "user", "content": "\n".join([instructions, *lines, memory.observation])}]


NOT_A_FUNCTION = 3


@pytest.mark.feature("Verlog", "prompts and memory of your own")
def test_a_function_builds_the_prompt_from_the_memory():
    here = f"{__name__}:cleared_every_two_turns"
    load_function.cache_clear()
    even, odd = memory(text_turns=2), memory(text_turns=2)
    odd.remember(response="ACTION: drop", action="drop", observation="a door")

    def built(memory: Memory) -> str:
        (message,) = build_messages(memory, template=here, instruction_prompt="Play.", compact_prompt="")
        return message["content"]

    assert built(even) == "Play.\nYou carry a key"
    assert built(odd) == "Play.\nYou carry a key > drop\na door"


@pytest.mark.feature("Verlog", "prompts and memory of your own")
def test_a_file_asks_in_its_own_words(tmp_path):
    file = tmp_path / "question.txt"
    file.write_text("What now?\nACTION: ...\n")

    assert build(str(file), text_turns=0)[-1] == (
        "user",
        "Current Observation:\nYou carry a key\n\nWhat now?\nACTION: ...",
    )


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ("nowhere:prompt", "'nowhere:prompt' cannot be imported"),
        (f"{__name__}:NOT_A_FUNCTION", "is no function, but 3"),
    ],
)
def test_a_function_that_cannot_be_used_is_an_error(prompt, problem):
    with pytest.raises(SettingsError, match=problem):
        load_function(prompt)


def test_a_missing_file_is_an_error():
    with pytest.raises(SettingsError, match=r"'none\.txt' cannot be read"):
        question("none.txt")


RETURNED: list[object] = []


def returned_messages(memory: Memory, instructions: str) -> object:
    return RETURNED[-1]


@pytest.mark.parametrize(
    "messages",
    [True, [], ["Play."], [{"role": "user"}], [{"role": "user", "content": None}], [{"role": "user", "text": "Play."}]],
)
def test_messages_of_a_function_are_checked(messages: object, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{__name__}.RETURNED", [messages])
    load_function.cache_clear()
    here = f"{__name__}:returned_messages"

    with pytest.raises(SettingsError, match="returned"):
        build_messages(memory(text_turns=1), template=here, instruction_prompt="", compact_prompt="")

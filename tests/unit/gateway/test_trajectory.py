"""Conversations of unchanged agents, token by token."""

import asyncio
import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from support.gateway import RecordedTurns, ScriptedEngine, bpe_tokenizer, ids_of, scripted_model, tool
from support.random_agents import RandomAgent
from turnmill.gateway.answers import AnswerRequest
from turnmill.gateway.errors import ContextLengthError, TurnLimitError, UnavailableError
from turnmill.gateway.messages import digest, normalized
from turnmill.gateway.parsing import ParsedAnswer, PlainParser
from turnmill.gateway.rendering import ChatRenderer
from turnmill.gateway.trajectory import Trajectory

Chat = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


def call(arguments: str, name: str = "bash", number: int = 0) -> dict[str, Any]:
    return {"id": f"other{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "other0"}


def request(messages: Chat, *, tools: list[dict[str, Any]] | None = None, **more: Any) -> AnswerRequest:
    body = json.dumps([messages, tools, more], default=str)
    return AnswerRequest(
        digest=digest(body), messages=tuple(map(normalized, messages)), tools=tuple(tools or ()), **more
    )


def trajectory(
    engine: ScriptedEngine, *, turns: Any = (), max_turns: int | None = None, **model: Any
) -> tuple[Trajectory, RecordedTurns]:
    record = RecordedTurns()
    model = scripted_model(engine, **{"parser": PlainParser()} | model)
    return Trajectory("t", model, record=record, turns=turns, max_turns=max_turns), record


def counting(texts: list[str] | None = None) -> ScriptedEngine:
    answers = iter(texts or [f"answer {number}" for number in range(1000)])
    return ScriptedEngine(lambda prompt: next(answers))


async def text_of(conversation: Trajectory, messages: Chat, **more: Any) -> str:
    (answer,) = await conversation.answer(request(messages, **more))
    return str(answer.message["content"])


def rendered(messages: Chat, **more: Any) -> tuple[int, ...]:
    text = bpe_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **more)
    return ids_of(text)


async def test_a_linear_conversation_continues_the_recorded_tokens_and_is_one_row():
    # Tokens that no tokenizer gives for this text.
    odd = [*(ids_of(character)[0] for character in "the answer"), *ids_of("<|im_end|>")]
    engine = ScriptedEngine(lambda prompt: odd)
    conversation, _ = trajectory(engine)
    chat = [{"role": "system", "content": "Be brief."}, user("What is it?")]

    for turn in range(4):
        chat.append(assistant(await text_of(conversation, chat)))
        chat.append(user(f"And now {turn}?"))

    (row,) = conversation.rows()
    assert row.prompt_ids == rendered(chat[:2])
    assert row.mask.count(1) == 4 * len(odd)
    assert [list(prompt) for prompt in engine.prompts[1:]] == [
        [*row.prompt_ids, *row.ids[: len(prompt) - len(row.prompt_ids)]] for prompt in engine.prompts[1:]
    ]
    assert (
        bpe_tokenizer().decode(row.prompt_ids + row.ids)
        == bpe_tokenizer().decode(rendered(chat[:-1]))[: -len("\n<|im_start|>assistant\n")]
    )
    assert not any(generation.reason for generation in conversation.tree.generations)


# Like Qwen3's: reasoning stays while the agent calls tools, and goes with the next question.
DROPS_REASONING = """
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}
{%- set reasoning = message.reasoning_content or '' %}{% set content = message.content %}
{%- if '</think>' in content %}{% set reasoning = content.split('</think>')[0].split('<think>')[-1] %}
{%- set content = content.split('</think>')[-1] %}{% endif %}
{%- if reasoning and loop.index0 > ns.last %}{{- '<think>' + reasoning + '</think>' }}{% endif %}
{{- content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


class Thinking:
    """A parser that takes reasoning out, as vLLM's do."""

    def parse(self, text: str, tools: Any) -> ParsedAnswer:
        reasoning, found, content = text.partition("</think>")
        return ParsedAnswer(content, reasoning.removeprefix("<think>")) if found else ParsedAnswer(text)


@pytest.mark.parametrize("parser", [Thinking(), PlainParser()])
@pytest.mark.parametrize("echoes", [True, False])
async def test_reasoning_that_the_template_drops_with_the_next_question_is_not_in_what_continues(
    parser: Any, echoes: bool
):
    engine = counting(["<think>I see.</think>Look.", "Seen.", "It is done."])
    tokenizer = deepcopy(bpe_tokenizer())
    tokenizer.chat_template = DROPS_REASONING
    model = replace(scripted_model(engine, parser=parser), renderer=ChatRenderer(tokenizer))
    conversation = Trajectory("t", model, record=RecordedTurns())
    chat = [user("What is it?")]

    for added in (result("total 4"), user("And now?")):
        (answer,) = await conversation.answer(request(chat))
        kept = answer.message if echoes else {**answer.message, "reasoning_content": None}
        chat += [dict(kept), added]
    await conversation.answer(request(chat))

    first, looked, asked = (bpe_tokenizer().decode(prompt) for prompt in engine.prompts)
    assert looked.startswith(first + "<think>I see.</think>Look.")
    assert "I see." not in asked
    assert [generation.parent for generation in conversation.tree.generations] == [None, 0, None]
    assert [generation.reason for generation in conversation.tree.generations] == ["", "", "template"]
    assert [row.generations for row in conversation.rows()] == [(0, 1), (2,)]


async def test_what_is_added_has_the_tokens_that_the_template_gives_it_in_the_whole_conversation():
    engine = counting()
    conversation, _ = trajectory(engine)
    chat = [user("Look at the result.")]

    for turn in range(3):
        chat.append(assistant(await text_of(conversation, chat)))
        chat += [result(f"total {turn}"), result("drwxr-xr-x")] if turn % 2 else [user("The lazy dog?")]

    await text_of(conversation, chat)
    assert engine.prompts[-1] == rendered(chat)


@pytest.mark.parametrize(
    "echo",
    [
        assistant("", call('{"command":"ls -la"}')),
        assistant(None, call('{ "command" : "ls -la" }', number=7)),
        {"role": "assistant", "content": [{"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}],
         "tool_calls": [call('{"command": "ls -la"}')], "reasoning": "Changed.", "refusal": None, "audio": None},
    ],
)  # fmt: skip
async def test_an_echo_with_other_ids_spaces_and_marks_is_the_recorded_answer(echo: dict[str, Any]):
    engine = counting(['<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>', "done"])
    record = RecordedTurns()
    conversation = Trajectory("t", scripted_model(engine), record=record)
    tools = [tool("bash")]
    (answer,) = await conversation.answer(request([user("Look.")], tools=tools))

    await text_of(conversation, [user("Look."), echo, result("total 4")], tools=tools)

    assert answer.finish_reason == "tool_calls"
    assert len(conversation.rows()) == 1
    assert [generation.parent for generation in conversation.tree.generations] == [None, 0]


@pytest.mark.parametrize(
    ("change", "reason", "parent"),
    [
        (lambda chat: [*chat[:-1], user("Something else?")], "sibling", 0),
        (lambda chat: [chat[0], assistant("I said something else"), *chat[2:]], "rewritten", None),
        (lambda chat: [{"role": "system", "content": "Be loud."}, *chat], "system", None),
        (lambda chat: [user("The history was: a lot."), user("Go on.")], "conversation", None),
    ],
)
async def test_a_changed_history_is_a_branch_with_its_reason(change: Any, reason: str, parent: int | None):
    conversation, _ = trajectory(counting())
    chat = [user("What is it?")]
    for _ in range(2):
        chat += [assistant(await text_of(conversation, chat)), user("And now?")]
    await text_of(conversation, chat)

    await text_of(conversation, change(chat[:3]))

    last = conversation.tree.generations[-1]
    assert (last.reason, last.parent) == (reason, parent)
    assert len(conversation.rows()) == 2


async def test_other_tools_begin_a_branch():
    conversation, _ = trajectory(counting())
    await text_of(conversation, [user("Look.")], tools=[tool("bash")])

    await text_of(conversation, [user("Look.")])

    assert conversation.tree.generations[-1].reason == "tools"


async def test_branches_share_their_beginning_whose_tokens_count_once():
    engine = counting()
    conversation, _ = trajectory(engine)
    chat = [user("What is it?")]
    chat += [assistant(await text_of(conversation, chat))]
    for question in ("One?", "Two?", "Three?"):
        await text_of(conversation, [*chat, user(question)])

    rows = conversation.rows()

    assert len(rows) == 3
    assert sum(sum(row.mask) for row in rows) == sum(map(len, engine.samples))
    assert [row.generations for row in rows] == [(0, 1), (2,), (3,)]
    shared = (*rows[0].prompt_ids, *rows[0].ids[: len(engine.samples[0])])
    assert all(row.prompt_ids[: len(shared)] == shared for row in rows[1:])


async def test_a_repeat_gets_the_recorded_answer_even_while_the_first_request_is_answered():
    engine = counting()
    conversation, record = trajectory(engine)
    chat = [user("What is it?")]

    first, second = await asyncio.gather(text_of(conversation, chat), text_of(conversation, chat))
    third = await text_of(conversation, chat)

    assert first == second == third == "answer 0"
    assert len(engine.prompts) == len(record.turns) == 1


async def test_an_answer_whose_client_went_away_is_there_for_its_repeat():
    engine = counting()
    conversation, record = trajectory(engine)
    asked = asyncio.create_task(text_of(conversation, [user("What is it?")]))
    await engine.asked.wait()
    asked.cancel()
    await asyncio.wait([asked])

    answer = await text_of(conversation, [user("What is it?")])

    assert answer == "answer 0"
    assert len(engine.prompts) == len(record.turns) == 1


async def test_a_failed_engine_leaves_nothing_behind_and_the_repeat_is_answered():
    engine = counting()
    engine.errors = [UnavailableError("no engine")]
    conversation, record = trajectory(engine)
    with pytest.raises(UnavailableError):
        await text_of(conversation, [user("What is it?")])

    assert await text_of(conversation, [user("What is it?")]) == "answer 0"
    assert len(record.turns) == 1


async def test_recorded_turns_are_replayed_to_the_same_requests_and_rows_hold_what_was_served():
    chat = [user("What is it?")]
    first, record = trajectory(counting())
    chat += [assistant(await text_of(first, chat)), user("And now?")]
    await text_of(first, chat)
    await text_of(first, [*chat[:-1], user("A question that only the first attempt asks?")])
    engine = counting(["a new answer"])
    second, _ = trajectory(engine, turns=record.turns)

    answers = [await text_of(second, chat[:1]), await text_of(second, chat)]

    assert answers == ["answer 0", "answer 1"]
    assert engine.prompts == []
    assert len(first.rows()) == 2
    assert second.rows() == first.rows()[:1]


async def test_several_answers_to_one_request_are_branches_of_it():
    conversation, record = trajectory(counting())

    answers = await conversation.answer(request([user("What is it?")], num_answers=3))

    assert [answer.message["content"] for answer in answers] == ["answer 0", "answer 1", "answer 2"]
    assert len(conversation.rows()) == len(record.turns) == 3
    assert [generation.reason for generation in conversation.tree.generations] == ["", "sibling", "sibling"]


async def test_the_rest_of_an_answer_of_which_the_first_items_arrived_is_not_sampled_again():
    calls = [f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{word}"}}}}\n</tool_call>' for word in "ab"]
    engine = counting(["I look." + "".join(calls)])
    conversation = Trajectory("t", scripted_model(engine), record=RecordedTurns())
    tools, chat = [tool("bash")], [user("Look.")]
    (whole,) = await conversation.answer(request(chat, tools=tools))
    assert len(whole.message["tool_calls"]) == 2

    (rest,) = await conversation.answer(request([*chat, assistant("I look.", call('{"command": "a"}'))], tools=tools))

    assert rest.message["tool_calls"] == whole.message["tool_calls"][1:]
    assert rest.message["content"] == ""
    assert len(engine.prompts) == 1


async def test_an_answer_that_its_token_limit_cut_goes_on_where_it_ended():
    engine = counting(["The quick brown fox jumps over the lazy dog", "and it goes on"])
    conversation, _ = trajectory(engine)
    chat = [user("Speak.")]
    (cut,) = await conversation.answer(request(chat, max_tokens=3))
    assert cut.finish_reason == "length"

    await text_of(conversation, [*chat, assistant(cut.message["content"])])

    assert engine.prompts[1] == engine.prompts[0] + engine.samples[0]
    assert len(conversation.rows()) == 1


async def test_a_stop_string_ends_the_text_and_stays_in_the_tokens():
    engine = counting(["The answer is STOP and more"])
    conversation, _ = trajectory(engine)

    (answer,) = await conversation.answer(request([user("Speak.")], stop=("STOP",)))

    assert (answer.message["content"], answer.stop, answer.finish_reason) == ("The answer is ", "STOP", "stop")
    assert answer.token_ids == engine.samples[0]


async def test_text_that_grows_continues_the_recorded_tokens():
    engine = counting([" two", " four"])
    conversation, _ = trajectory(engine)
    (first,) = await conversation.answer(AnswerRequest(digest="1", text="one"))
    grown = "one" + first.message["content"] + " three"

    await conversation.answer(AnswerRequest(digest="2", text=grown))

    assert engine.prompts[1] == engine.prompts[0] + engine.samples[0] + ids_of(" three")
    assert len(conversation.rows()) == 1


async def test_limits_of_turns_and_context_refuse_a_request():
    conversation, _ = trajectory(counting(), max_turns=1, max_context_tokens=200)
    await text_of(conversation, [user("What is it?")])

    with pytest.raises(TurnLimitError, match="1 turns"):
        await text_of(conversation, [user("And now?")])
    longer, _ = trajectory(counting(), max_context_tokens=200)
    with pytest.raises(ContextLengthError, match="maximum context length is 200 tokens"):
        await text_of(longer, [user("a b " * 200)])


async def test_what_is_rendered_and_tokenized_does_not_grow_with_the_conversation(monkeypatch: pytest.MonkeyPatch):
    conversation, _ = trajectory(ScriptedEngine(lambda prompt: "the answer"))
    sizes: list[int] = []
    tokenize = ChatRenderer.tokenize

    def measured(renderer: ChatRenderer, text: str, *pictures: Any) -> list[int]:
        sizes.append(len(text))
        return tokenize(renderer, text, *pictures)

    monkeypatch.setattr(ChatRenderer, "tokenize", measured)
    chat = [user("What is it?")]
    for _ in range(128):
        chat += [assistant(await text_of(conversation, chat)), user("And now?")]

    assert len(sizes) == 128
    assert len(set(sizes[1:])) == 1


@pytest.mark.parametrize("seed", range(200))
async def test_whatever_an_agent_does_each_sampled_token_is_trained_on_once_and_no_other(seed: int):
    agent = RandomAgent(seed, linear=seed % 4 == 0)
    await agent.play(30)

    found = agent.check()

    assert (found.foreign_tokens, found.lost_tokens, found.other_prompts, found.other_records) == (0, 0, 0, 0)
    if agent.linear:
        assert found.rows == 1
    replayed, _ = trajectory(ScriptedEngine(lambda prompt: None), turns=agent.record.turns)
    assert replayed.tree.generations == agent.conversation.tree.generations

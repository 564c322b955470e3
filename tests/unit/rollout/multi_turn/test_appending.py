import random
from typing import Any

import pytest
from verl.utils.tokenizer.continuous_token import (
    ContinuousTokenBuilder,
    GLMContinuousTokenBuilder,
    QwenContinuousTokenBuilder,
)

from support.gateway import bpe_tokenizer
from turnmill.rollout.multi_turn.appending import ContextAppender

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
TEXTS = ("", "found", " spaced \n", "<|im_end|>", "<tool_call>", "é 漢字 \U0001f600", "a" * 300, '{"x": [1, 2]}')
PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}>{% endif %}"
# Here a tool's role is one token with the space before it.
GLUED = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"


def appender_of(builder: Any) -> ContextAppender:
    appender = ContextAppender.of(builder, builder.tokenizer)
    assert appender is not None
    return appender


@pytest.mark.parametrize("kind", [ContinuousTokenBuilder, QwenContinuousTokenBuilder])
@pytest.mark.parametrize("template", [None, PLAIN])
def test_appended_tokens_are_verls(kind: type, template: str | None) -> None:
    tokenizer = bpe_tokenizer()
    kwargs = {"chat_template_kwargs": {"chat_template": template}} if template else {}
    builder = kind(tokenizer, **kwargs)
    appender = appender_of(builder)
    drawn = random.Random(0)
    for number in range(60):
        tools = TOOLS if number % 3 else []
        known = list(range(5)) + ([tokenizer.eos_token_id] if number % 2 else [])
        mask, log_probs = [1] * 4, [-0.5] * 4 if number % 5 else None
        messages: list[dict[str, Any]] = [
            {"role": "tool", "content": drawn.choice(TEXTS)}
            | ({"tool_call_id": f"c{number}"} if number % 7 == 0 else {})
            for _ in range(drawn.randint(1, 3))
        ]
        before = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        merged = builder.merge_context_tokens(before, [*before, *messages], known, tools=tools)
        aligned = builder.align_response_metadata(merged, mask, log_probs)

        ids = list(known)
        result = appender.add_results(ids, mask, log_probs, messages, tools)

        assert ids == result.token_ids == merged.token_ids
        assert (mask, log_probs) == aligned
        assert result.inserted_token_ids == merged.inserted_token_ids


@pytest.mark.parametrize("with_log_probs", [False, True])
def test_an_appended_response_is_verls(with_log_probs: bool) -> None:
    builder = ContinuousTokenBuilder(bpe_tokenizer())
    ids, mask, log_probs = [1, 2, 3], [0], [0.0] if with_log_probs else None
    new_log_probs = [-1.0, -2.0] if with_log_probs else None
    merged = builder.merge_assistant_tokens(ids, [8, 9])
    aligned = builder.align_response_metadata(merged, mask, log_probs, assistant_logprobs=new_log_probs)

    appender_of(builder).add_response(ids, mask, log_probs, [8, 9], new_log_probs)

    assert (ids, (mask, log_probs)) == (merged.token_ids, aligned)


def test_schemas_of_another_list_are_rendered_anew() -> None:
    builder = ContinuousTokenBuilder(bpe_tokenizer())
    appender = appender_of(builder)
    messages = [{"role": "tool", "content": "found"}]
    found = []
    for _ in range(100):
        # A list that takes the address of one that is gone.
        tools = [{"type": "function", "function": {"name": f"tool_{len(found)}"}}]
        ids = [1]
        appender.add_results(ids, [], None, messages, tools)
        found.append(ids)

    assert all(ids == found[0] for ids in found)


def test_a_template_that_has_no_place_to_append_is_refused_as_by_verl() -> None:
    builder = ContinuousTokenBuilder(bpe_tokenizer(), chat_template_kwargs={"chat_template": GLUED})

    with pytest.raises(ValueError, match="suffix diff failed"):
        appender_of(builder).add_results([1], [], None, [{"role": "tool", "content": "found"}], TOOLS)


def test_a_builder_that_changes_the_context_is_left_alone() -> None:
    class Other(ContinuousTokenBuilder):
        pass

    tokenizer = bpe_tokenizer()
    assert ContextAppender.of(Other(tokenizer), tokenizer) is None
    assert ContextAppender.of(GLMContinuousTokenBuilder.__new__(GLMContinuousTokenBuilder), tokenizer) is None

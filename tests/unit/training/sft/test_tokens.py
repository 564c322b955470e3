import pytest

from support.chat_tokenizers import DROPS_REASONING, REWRITES, byte_level_tokenizer
from turnmill.core.errors import SettingsError
from turnmill.training.sft.conversations import Message, parse_conversation
from turnmill.training.sft.tokens import TokenRow, conversation_rows
from turnmill.training.warm_start.tokenizer import build_tokenizer

MESSAGES: list[Message] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is 1 + 1 ?\n\n"},
    {"role": "assistant", "content": "  the sum is 2 \U0001f642"},
    {"role": "user", "content": "and of one and two"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "three<|end|> of them"},
]
TOOLS = [{"type": "function", "function": {"name": "add"}}]


def rows_of(tokenizer, messages=MESSAGES, tools=()) -> list[TokenRow]:
    return list(conversation_rows(parse_conversation({"messages": messages, "tools": list(tools)}, "row 1"), tokenizer))


def learned(tokenizer, row: TokenRow) -> list[str]:
    """Return the texts of the learned tokens, those that follow each other joined."""
    parts: list[list[int]] = [[]]
    for token, flag in zip(row.ids, row.mask, strict=True):
        if flag:
            parts[-1].append(token)
        elif parts[-1]:
            parts.append([])
    return [tokenizer.decode(part) for part in parts if part]


def test_a_row_has_the_tokens_of_the_template_and_learns_the_answers_with_their_ends_alone():
    tokenizer = byte_level_tokenizer()

    (row,) = rows_of(tokenizer, tools=TOOLS)

    whole = tokenizer.apply_chat_template(MESSAGES, tools=TOOLS, tokenize=True, return_dict=False)
    assert list(row.ids) == whole
    assert learned(tokenizer, row) == [
        "  the sum is 2 \U0001f642<|end|>",
        '<call>{"name": "add", "arguments": {"a": 1, "b": 2}}</call><|end|>',
        "three<|end|> of them<|end|>",
    ]


def test_the_words_of_the_tiny_model_are_learned_in_the_same_way():
    tokenizer = build_tokenizer(["be brief", " what is 1", " 2"])
    messages = [MESSAGES[0], {"role": "user", "content": " what is 1"}, {"role": "assistant", "content": " 2 2"}]

    (row,) = rows_of(tokenizer, messages)

    assert list(row.ids) == tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert learned(tokenizer, row) == [" 2 2<|im_end|>"]


def test_an_answer_that_is_marked_is_read_alone():
    tokenizer = byte_level_tokenizer()
    messages = [*MESSAGES[:2], MESSAGES[2] | {"loss": False}, *MESSAGES[3:5]]

    (row,) = rows_of(tokenizer, messages)

    assert len(learned(tokenizer, row)) == 1
    assert learned(tokenizer, row)[0].startswith("<call>")


def test_an_answer_that_the_template_rewrites_later_is_learned_in_a_row_of_its_own():
    tokenizer = byte_level_tokenizer(DROPS_REASONING)
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>hm</think>1"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "<think>oh</think>2"},
        {"role": "assistant", "content": "<think>so</think>2!"},
    ]

    last, first = rows_of(tokenizer, messages)

    assert learned(tokenizer, first) == ["<think>hm</think>1<|end|>"]
    assert learned(tokenizer, last) == ["<think>oh</think>2<|end|>", "<think>so</think>2!<|end|>"]
    for row, upto in ((first, 2), (last, 5)):
        assert list(row.ids) == tokenizer.apply_chat_template(messages[:upto], tokenize=True, return_dict=False)


def test_a_conversation_that_begins_with_an_answer_learns_no_first_token():
    (row,) = rows_of(byte_level_tokenizer(), [{"role": "assistant", "content": "hello"}])

    assert row.mask[0] == 0
    assert sum(row.mask) > 0


@pytest.mark.parametrize(
    ("template", "reason"),
    [(REWRITES, "is rendered otherwise"), ("{{ raise_exception('no tools here') }}", "is refused .* no tools here")],
)
def test_a_template_that_cannot_render_turn_by_turn_is_refused(template: str, reason: str):
    with pytest.raises(SettingsError, match=f"^row 1 {reason}"):
        rows_of(byte_level_tokenizer(template))

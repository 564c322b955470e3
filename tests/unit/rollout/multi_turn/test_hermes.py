import pytest

from support.gateway import bpe_tokenizer
from turnmill.rollout.multi_turn.hermes import HermesCalls
from turnmill.rollout.multi_turn.verl_classes import HermesToolParser

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "é 漢字", "page": 2}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "num_calls"),
    [
        (f"I look it up. {CALL}<|im_end|>", 1),
        (f"{CALL} and {CALL}", 2),
        (f"<tool_call>no JSON</tool_call>{CALL}", 1),
        ('<tool_call>{"name": "look_up"}</tool_call>', 0),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', 0),
        (f"<tool_call>{CALL[:30]}", 0),
        ("no call", 0),
        ("", 0),
    ],
)
async def test_calls_in_a_text_are_those_that_verl_finds(text: str, num_calls: int):
    tokenizer = bpe_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)

    content, calls = HermesCalls(tokenizer).calls_in(text)

    assert (content, calls) == await HermesToolParser(tokenizer).extract_tool_calls(ids, [])
    assert len(calls) == num_calls

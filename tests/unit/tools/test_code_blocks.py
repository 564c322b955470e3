"""Blocks of code in texts with many unclosed tags, for which a search in quadratic time would take hours."""

import pytest

from turnmill.testing.tool_calls import make_tool
from turnmill.tools.browser.commands import fenced_command
from turnmill.tools.code_blocks import first_tagged, function_call, stdin_of, tagged

MANY = 300_000


def test_a_block_before_many_unclosed_tags_is_found():
    text = "<a>1</a> <a> 2<a> </a>"

    assert tagged(text + "<a>" * MANY, "a") == ["1", "2<a>"]
    assert first_tagged("<b>" * MANY, "b") is None


def test_unclosed_calls_and_inputs_are_ignored():
    assert function_call("<tool_call>" * MANY) is None
    assert stdin_of("```input\nx" * MANY, "given") == b"given"


@pytest.mark.parametrize("text", ["<think>" * MANY, "<think></think>" * MANY + "```", "</think>```click [1]```"])
def test_a_thought_without_a_command_has_no_command(text):
    assert fenced_command(text) is None


@pytest.mark.parametrize("text", ["<a>" * MANY, "<py>" * MANY + "</rb>", "```" + "a" * MANY])
def test_unclosed_programs_are_ignored(text):
    assert make_tool("sandbox_fusion").parse(text) is None


def test_a_program_is_found_among_unclosed_tags():
    text = "<think>" + "<a>" * MANY + "<think><py>1</py></think><rb>2</rb>"

    assert make_tool("sandbox_fusion").parse(text) == '{"code": "2", "language": "ruby"}'

from turnmill.rollout.multi_turn.tool_results import ToolResult, decode_result, encode_results
from turnmill.rollout.multi_turn.verl_classes import ToolResponse


def test_a_result_is_decoded_as_it_was_encoded():
    found = ToolResult(ToolResponse(text="found"), 0.5, {"loud": 1.0})
    plain = ToolResult(ToolResponse(text="none"))

    encoded = encode_results({1: ("search", plain), 0: ("search", found), 2: ("search", None)})

    assert [decode_result(encoded, number, "search") for number in range(3)] == [found, plain, None]
    assert decode_result(encoded, 0, "another") is None


def test_a_result_that_is_no_json_is_not_encoded():
    odd = ToolResult(ToolResponse(text="found"), metrics={"loud": object()})

    assert encode_results({0: ("search", odd)}) == ""

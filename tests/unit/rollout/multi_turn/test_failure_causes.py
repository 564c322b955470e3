"""Which errors of a tool end an episode, however an HTTP client has wrapped them."""

import pytest

from turnmill.core.errors import ToolCallConnectionError, ToolCallError, ToolCallTimeoutError, ToolFailedError
from turnmill.rollout.multi_turn.tools import ToolCall, _episode_error

CALL = ToolCall(0, 0, "search")


def wrapped(cause: Exception) -> Exception:
    try:
        raise RuntimeError("wrapped") from cause
    except RuntimeError as error:
        return error


def raised_while_handling(cause: Exception, *, suppressed: bool = False) -> Exception:
    try:
        try:
            raise cause
        except Exception:
            if suppressed:
                raise RuntimeError("instead") from None
            raise RuntimeError("meanwhile")  # noqa: B904
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("wrap", [lambda error: error, wrapped, raised_while_handling, lambda e: wrapped(wrapped(e))])
@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (ToolFailedError("down"), ToolCallError),
        (TimeoutError(), ToolCallTimeoutError),
        (ConnectionResetError(), ToolCallConnectionError),
    ],
)
def test_a_failure_of_infrastructure_ends_the_episode_however_it_is_wrapped(wrap, cause, expected):
    assert type(_episode_error(wrap(cause), CALL, None)) is expected


@pytest.mark.parametrize("error", [ValueError("of the tool"), raised_while_handling(TimeoutError(), suppressed=True)])
def test_an_error_of_the_tool_itself_does_not(error):
    assert _episode_error(error, CALL, None) is None

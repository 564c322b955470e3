"""Finds tool calls in the format `hermes`."""

import json
import logging
import re
from collections.abc import Sequence

from turnmill.rollout.multi_turn.episode import CURRENT_EPISODE
from turnmill.rollout.multi_turn.verl_classes import FunctionCall, HermesToolParser, ToolSchema

log = logging.getLogger(__name__)

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class HermesCalls(HermesToolParser):
    """verl's parser, for responses of an episode, which knows their texts: verl's own decodes each in a thread."""

    def calls_in(self, text: str) -> tuple[str, list[FunctionCall]]:
        """Return the text without its tool calls, and the tool calls."""
        calls = []
        for found in _CALL.findall(text):
            try:
                call = json.loads(found)
                arguments = json.dumps(call["arguments"], ensure_ascii=False)
                calls.append(FunctionCall(name=call["name"], arguments=arguments))
            except Exception as error:
                log.error("A tool call is not JSON with a name and arguments: %s", error)
        return _CALL.sub("", text), calls

    async def extract_tool_calls(
        self, responses_ids: Sequence[int], tools: Sequence[ToolSchema] = ()
    ) -> tuple[str, list[FunctionCall]]:
        """Return the text without its tool calls, and the tool calls."""
        return self.calls_in(CURRENT_EPISODE.get().text_of(responses_ids))

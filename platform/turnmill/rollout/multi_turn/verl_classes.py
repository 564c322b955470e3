"""verl's tool agent loop and tool classes, with static types; see `turnmill.rollout.verl_classes`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from enum import Enum
    from typing import Literal, Protocol, TypeVar

    from pydantic import BaseModel

    from turnmill.rollout.verl_classes import AgentLoopBase, AgentLoopOutput
    from turnmill.rollout.verl_types import Message, SamplingParams, Tokenizer

    FunctionT = TypeVar("FunctionT", bound=Callable[..., object])

    class ToolSchema(Protocol):
        """The schema of a tool, in OpenAI's format."""

        def model_dump(self, *, exclude_unset: bool, exclude_none: bool) -> dict[str, object]:
            """Return the schema as the policy is shown it."""

    class ToolResponse(BaseModel):
        """The response of a tool: text, images and videos."""

        text: str | None = None
        image: list[object] | None = None
        video: list[object] | None = None

    class BaseTool:
        """The base of verl's tools."""

        name: str
        config: dict[str, object]
        tool_schema: ToolSchema

        def __init__(self, config: dict[str, object], tool_schema: ToolSchema) -> None: ...

        async def create(self, instance_id: str | None = None, **kwargs: object) -> tuple[str, ToolResponse]:
            """Make an instance for one call."""

        async def execute(
            self, instance_id: str, parameters: dict[str, object], **kwargs: object
        ) -> tuple[ToolResponse, float | None, Mapping[str, object]]:
            """Return the tool's response, its reward and its metrics."""

        async def release(self, instance_id: str, **kwargs: object) -> None:
            """Drop the instance."""

    class FunctionTool:
        """A function as a tool."""

        name: str
        fn: Callable[..., object]
        tool_schema: ToolSchema

        def __init__(
            self, name: str, fn: Callable[..., object], tool_schema: ToolSchema, is_async: bool = False
        ) -> None: ...

        async def call(self, parameters: dict[str, object]) -> object:
            """Call the function."""

    def function_tool(function: FunctionT) -> FunctionT:
        """Register a function as a tool."""

    def normalize_function_tool_return(
        returned: object,
    ) -> tuple[ToolResponse, float | None, Mapping[str, object]]:
        """Return a function's value as a response, a reward and metrics."""

    class FunctionCall(BaseModel):
        """A call of a tool, with its arguments as JSON."""

        name: str
        arguments: str

    class MergeResult:
        """A context to which tokens were added."""

        token_ids: list[int]
        appended_token_count: int
        inserted_token_ids: Sequence[int]

        def __init__(
            self,
            token_ids: list[int],
            appended_token_count: int,
            kind: Literal["assistant", "context"],
            inserted_token_ids: Sequence[int] = (),
        ) -> None: ...

    class ContinuousTokenBuilder:
        """Tokenizes the messages of an episode one after the other."""

        chat_template_kwargs: Mapping[str, object]

        def _merge_context_token_ids(
            self, runtime_token_ids: Sequence[int], appended_token_ids: Sequence[int]
        ) -> MergeResult: ...

        def _tokenize_tool_group(
            self,
            tool_messages: Sequence[Message],
            *,
            previous_messages: Sequence[Message],
            tools: Sequence[object],
            add_generation_prompt: bool,
        ) -> list[int]: ...

        def _synthetic_assistant_for_tools(self, tool_messages: Sequence[Message]) -> Message: ...

    class QwenContinuousTokenBuilder(ContinuousTokenBuilder):
        """Adds the line break that Qwen's models do not generate."""

    SYNTHETIC_MESSAGES: Sequence[Message]

    class ToolParser(Protocol):
        """Finds tool calls in a response."""

        async def extract_tool_calls(
            self, responses_ids: Sequence[int], tools: Sequence[ToolSchema]
        ) -> tuple[str, list[FunctionCall]]:
            """Return the text and the tool calls of a response."""

    class HermesToolParser(ToolParser):
        """Finds tool calls as Hermes writes them."""

        tokenizer: Tokenizer

        def __init__(self, tokenizer: Tokenizer) -> None: ...

    class AgentState(Enum):
        """States of verl's loop of tools."""

        PENDING = "pending"
        GENERATING = "generating"
        PROCESSING_TOOLS = "processing_tools"
        TERMINATED = "terminated"

    class AgentData:
        """The state of an episode in verl's loop of tools."""

        messages: list[Message]
        image_data: list[object] | None
        prompt_ids: list[int]
        response_ids: list[int]
        response_mask: list[int]
        response_logprobs: list[float]
        user_turns: int
        assistant_turns: int
        tool_calls: list[FunctionCall]
        _active_tools: Mapping[str, BaseTool | FunctionTool]
        _active_tool_schemas: list[object]

    def apply_chat_template(
        processor: Tokenizer,
        messages: Sequence[Message],
        *,
        tokenize: Literal[False],
        add_generation_prompt: bool,
        tools: Sequence[object],
        **options: object,
    ) -> str:
        """Render messages in the chat template."""

    class ToolListWrap:
        """Tools that hydra leaves as they are."""

        def __init__(self, tools: Sequence[BaseTool | FunctionTool]) -> None: ...

    class ToolAgentLoop(AgentLoopBase):
        """verl's loop of tools."""

        response_length: int
        max_user_turns: int | None
        max_assistant_turns: int | None
        tool_parser: ToolParser

        async def run(self, sampling_params: SamplingParams, **row: object) -> AgentLoopOutput:
            """Play an episode."""

        async def _handle_pending_state(self, agent_data: AgentData, sampling_params: SamplingParams) -> AgentState: ...

        async def _handle_generating_state(
            self, agent_data: AgentData, sampling_params: SamplingParams, ignore_termination: bool = False
        ) -> AgentState: ...

        async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState: ...

        def _build_assistant_message(self, content: str, agent_data: AgentData) -> Message: ...
else:
    from verl.experimental.agent_loop.agent_loop import ToolListWrap
    from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall, HermesToolParser
    from verl.tools.base_tool import BaseTool
    from verl.tools.function_tool import FunctionTool, function_tool, normalize_function_tool_return
    from verl.tools.schemas import OpenAIFunctionToolSchema as ToolSchema
    from verl.tools.schemas import ToolResponse
    from verl.utils.tokenizer import continuous_token
    from verl.utils.tokenizer.chat_template import apply_chat_template
    from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, MergeResult, QwenContinuousTokenBuilder

    SYNTHETIC_MESSAGES = (continuous_token._SYNTHETIC_SYSTEM_MESSAGE, continuous_token._SYNTHETIC_USER_MESSAGE)

__all__ = [
    "SYNTHETIC_MESSAGES",
    "AgentData",
    "AgentState",
    "BaseTool",
    "ContinuousTokenBuilder",
    "FunctionCall",
    "FunctionTool",
    "HermesToolParser",
    "MergeResult",
    "QwenContinuousTokenBuilder",
    "ToolAgentLoop",
    "ToolListWrap",
    "ToolResponse",
    "ToolSchema",
    "apply_chat_template",
    "function_tool",
    "normalize_function_tool_return",
]

"""verl's classes that agent loops build on, with static types, which verl lacks.

At run time these are verl's own. For type checkers, the members that this package uses are declared here.
"""

from typing import TYPE_CHECKING

from turnmill.rollout.token_output import TokenOutput

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Mapping, Sequence
    from typing import Any, Unpack

    from pydantic import BaseModel
    from tensordict import TensorDict

    from turnmill.rollout.verl_types import (
        ActorClass,
        ActorHandle,
        BatchRow,
        LLMClient,
        LoadBalancer,
        MergeResult,
        Message,
        Processor,
        RolloutConfig,
        RunConfig,
        SamplingParams,
        TokenBuilder,
        Tokenizer,
        TrajectoryInfo,
    )

    class AgentLoopMetrics(BaseModel):
        """Times of verl's own loops."""

    class AgentLoopOutput(BaseModel):
        """One row of an agent loop."""

        prompt_ids: list[int]
        response_ids: list[int]
        response_mask: list[int]
        response_logprobs: list[float] | None = None
        multi_modal_data: dict[str, object] | None = None
        reward_score: float | None = None
        num_turns: int = 0
        metrics: AgentLoopMetrics
        extra_fields: dict[str, Any] = {}

        def as_dict(self) -> dict[str, Any]:
            """Return the fields that go to the TransferQueue."""

    class DictConfigWrap:
        """A configuration that hydra leaves as it is."""

        def __init__(self, config: object) -> None: ...

    class AgentLoopBase:
        """The base of agent loops."""

        rollout_config: RolloutConfig
        server_manager: LLMClient
        tokenizer: Tokenizer
        processor: Processor | None
        continuous_token_builder: TokenBuilder
        loop: AbstractEventLoop

        def __init__(self, *args: object, **kwargs: object) -> None: ...

        async def ct_build_initial_tokens(
            self, messages: Sequence[Message], *, images: Sequence[object] | None = None
        ) -> list[int]:
            """Return the tokens of a prompt."""

        async def ct_merge_context_msg(
            self,
            previous_messages: Sequence[Message],
            updated_messages: Sequence[Message],
            runtime_token_ids: list[int],
            response_mask: list[int],
            response_logprobs: list[float] | None = None,
            tools: Sequence[object] | None = None,
        ) -> tuple[MergeResult, list[int], list[float] | None]:
            """Return the tokens of a context with messages added."""

        async def ct_merge_assistant_token(
            self,
            runtime_token_ids: list[int],
            assistant_token_ids: Sequence[int],
            response_mask: list[int],
            response_logprobs: list[float] | None = None,
            assistant_logprobs: Sequence[float] | None = None,
        ) -> tuple[MergeResult, list[int], list[float] | None]:
            """Return the tokens of a context with a response added."""

    class AgentLoopWorker:
        """A worker that plays the rows of a batch."""

        config: RunConfig
        llm_client: LLMClient
        tokenizer: Tokenizer
        processor: Processor | None
        hf_model_type: str | None
        dataset_cls: type

        def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None: ...

        async def _run_agent_loop(
            self,
            sampling_params: SamplingParams,
            trajectory: TrajectoryInfo,
            *,
            agent_name: str,
            trace: bool,
            **row: Unpack[BatchRow],
        ) -> None: ...

        async def _agent_loop_postprocess(
            self, output: AgentLoopOutput | Sequence[AgentLoopOutput], validate: bool, **row: Unpack[BatchRow]
        ) -> None: ...

    class AgentLoopWorkerTQ(AgentLoopWorker):
        """A worker that puts rows into the TransferQueue."""

        async def generate_sequences(self, batch: TensorDict) -> None:
            """Start the agent loops of a batch."""

        async def _run_prompt(
            self,
            prompt: dict[str, Any],
            sampling_params: SamplingParams,
            trajectory: TrajectoryInfo,
            trace: bool = False,
        ) -> None: ...

    class AgentLoopManagerTQ:
        """Hands rows out to workers, and returns at once."""

        config: RunConfig
        agent_loop_workers: list[ActorHandle]
        agent_loop_workers_class: ActorClass
        llm_client: LLMClient
        teacher_client: object
        reward_loop_worker_handles: object

        def __init__(self, *args: object, **kwargs: object) -> None: ...

        async def _init_agent_loop_workers(self) -> None: ...

        def generate_sequences(self, prompts: TensorDict) -> None:
            """Start the agent loops of a batch."""

    class LLMServerClient:
        """verl's client of its inference servers."""

        _load_balancer: LoadBalancer

        def __init__(self, *args: object, **kwargs: object) -> None: ...

        async def _acquire_server(self, request_id: str, **extra: object) -> tuple[str, ActorHandle]: ...

        def _release_server(self, server_id: str, request_id: str | None = None) -> None: ...

        async def generate(
            self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
        ) -> TokenOutput:
            """Return the response to a prompt."""

    class FullyAsyncLLMServerClient(LLMServerClient):
        """A client that continues responses which were aborted."""

    agent_loop_registry: Mapping[str, object]
else:
    from verl.experimental.agent_loop.agent_loop import (
        AgentLoopBase,
        AgentLoopMetrics,
        AgentLoopOutput,
        AgentLoopWorker,
        DictConfigWrap,
    )
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry as agent_loop_registry
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ as AgentLoopWorkerActor
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

    AgentLoopWorkerTQ = AgentLoopWorkerActor.__ray_metadata__.modified_class

__all__ = [
    "AgentLoopBase",
    "AgentLoopManagerTQ",
    "AgentLoopMetrics",
    "AgentLoopOutput",
    "AgentLoopWorker",
    "AgentLoopWorkerTQ",
    "DictConfigWrap",
    "FullyAsyncLLMServerClient",
    "LLMServerClient",
    "TokenOutput",
    "agent_loop_registry",
]

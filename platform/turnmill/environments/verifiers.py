"""Environments of the library verifiers: their own rollout runs, and the agent stands where it calls a model."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from turnmill.core.errors import EnvironmentFailedError, SettingsError
from turnmill.environments.base import VALIDATION_SEEDS, Environment, EnvironmentOptions, StepResult
from turnmill.environments.extras import import_extra
from turnmill.environments.registry import register

_MODEL = "turnmill"


class VerifiersOptions(EnvironmentOptions):
    """How the environment is loaded."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its function `load_environment`."""


@dataclass(frozen=True, slots=True)
class _End:
    """The rollout is over, scored."""

    state: Any


@register
class Verifiers(Environment):
    """`task` is an environment's id: an installed module with a function `load_environment`."""

    name: ClassVar[str] = "verifiers"
    Settings: ClassVar[type[EnvironmentOptions]] = VerifiersOptions
    actions = ()
    default_action = ""

    def __init__(self, task: str | None, max_turns: int, options: VerifiersOptions) -> None:
        super().__init__(task, max_turns, options)
        if task is None:
            raise SettingsError(
                "environment.task: verifiers needs one. Give the id of an environment that is installed."
            )
        library = import_extra("verifiers", extra="verifiers")
        try:
            self._inner = library.load_environment(task, **options.arguments)
        except (ValueError, RuntimeError, TypeError) as error:
            raise SettingsError(
                f"environment.task: verifiers cannot load {task!r}: {error}. Install the module of that name where "
                "environment.python has its packages, and correct environment.options.arguments."
            ) from error
        self._rows = self._inner.get_dataset()
        self._agent = _agent_class(library)()
        self._loop = asyncio.new_event_loop()
        self._rollout: asyncio.Task[None] | None = None
        self._instructions = ""

    def reset(self, seed: int) -> str:
        """Begin the rollout of a row: one for evaluation by a validation's seed, one for training by any other."""
        self._abandon()
        # Asked for when it is needed, for it may take a download; without one, the library gives the rows of training.
        rows = self._inner.get_eval_dataset() if seed < VALIDATION_SEEDS else self._rows
        row = dict(rows[seed % len(rows)])
        self._rollout = self._loop.create_task(self._play(row))
        messages = self._next_event()
        if isinstance(messages, _End):
            raise EnvironmentFailedError(
                f"verifiers' environment {self.task!r} was over before the agent had its turn."
            )
        self._instructions = _text(messages, roles=("system",))
        return _text(messages, roles=("user", "tool"))

    def step(self, action: str) -> StepResult:
        """Answer, and hear what the environment says to it; the whole reward comes with the end."""
        self._agent.answer(action)
        event = self._next_event()
        if not isinstance(event, _End):
            return StepResult(_text(_after_the_answer(event), roles=("user", "tool", "system")))
        state = event.state
        if state.get("error") is not None:
            raise EnvironmentFailedError(f"verifiers' environment {self.task!r} failed: {state['error']!r}.")
        metrics = {name: float(value) for name, value in (state.get("metrics") or {}).items() if value is not None}
        final = state.get("final_env_response") or ()
        told = _text(final, roles=("user", "tool")) if not isinstance(final, str) else final
        return StepResult(told, float(state.get("reward") or 0.0), terminated=True, info=metrics)

    def instruction_prompt(self) -> str:
        """The environment's own system prompt."""
        return self._instructions or "Answer step by step."

    def match_action(self, answer: str) -> str | None:
        """Anything but silence."""
        return answer.strip() or None

    def close(self) -> None:
        """End the rollout."""
        self._abandon()
        self._loop.close()

    async def _play(self, row: dict[str, Any]) -> None:
        state = await self._inner.rollout(row, self._agent, _MODEL, {})
        await self._inner.rubric.score_rollout(state)
        self._agent.events.put_nowait(_End(state))

    def _next_event(self) -> Any:
        """Messages for the agent, or the end; the rollout goes on until there is one of them."""

        async def wait() -> Any:
            event = asyncio.ensure_future(self._agent.events.get())
            assert self._rollout is not None, "an episode begins with a reset"
            await asyncio.wait({event, self._rollout}, return_when=asyncio.FIRST_COMPLETED)
            if not event.done() and self._agent.events.empty():
                event.cancel()
                # What the rollout raised is what there is to tell.
                self._rollout.result()
            return await event

        return self._loop.run_until_complete(wait())

    def _abandon(self) -> None:
        if self._rollout is not None and not self._rollout.done():
            self._rollout.cancel()
            self._loop.run_until_complete(asyncio.gather(self._rollout, return_exceptions=True))
        self._rollout = None
        self._agent.forget()


def _agent_class(library: Any) -> Any:
    """The stand-in for a model, as a class of the library that is installed."""
    clients = import_extra("verifiers.clients", extra="verifiers")
    types = import_extra("verifiers.types", extra="verifiers")

    class Agent(clients.Client):  # type: ignore[name-defined]
        """Hands prompts out as events, and waits for the answers that come from outside."""

        def __init__(self) -> None:
            self.events: asyncio.Queue[Any] = asyncio.Queue()
            self._answers: asyncio.Queue[str] = asyncio.Queue()
            self._numbers = itertools.count()

        def answer(self, text: str) -> None:
            """What the model says next."""
            self._answers.put_nowait(text)

        def forget(self) -> None:
            """Drop what an abandoned rollout left."""
            self.events, self._answers = asyncio.Queue(), asyncio.Queue()

        async def get_response(self, prompt: Any, *_: Any, **__: Any) -> Any:
            """One turn."""
            self.events.put_nowait(prompt)
            content = await self._answers.get()
            message = types.ResponseMessage(content=content, finish_reason="stop", is_truncated=False)
            number = next(self._numbers)
            return types.Response(id=str(number), created=int(time.time()), model=_MODEL, message=message)

    # The library's own clients turn messages into requests; this one makes none.
    Agent.__abstractmethods__ = frozenset()
    return Agent


def _text(messages: Sequence[Any], *, roles: tuple[str, ...]) -> str:
    return "\n\n".join(_content(message) for message in messages if _field(message, "role") in roles).strip()


def _after_the_answer(messages: Sequence[Any]) -> list[Any]:
    """What came since the agent spoke last."""
    newest = list(itertools.takewhile(lambda message: _field(message, "role") != "assistant", reversed(messages)))
    return newest[::-1]


def _content(message: Any) -> str:
    content = _field(message, "content")
    if isinstance(content, list):
        return "".join(str(_field(part, "text") or "") for part in content)
    return str(content or "")


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)

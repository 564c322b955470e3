"""Adapter for the library verifiers: its own rollout runs, with the agent in place of the model that it calls."""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from pydantic import Field, JsonValue

from turnmill.core.errors import EnvironmentFailedError, SettingsError
from turnmill.environments.base import VALIDATION_SEEDS, Environment, EnvironmentOptions, StepResult
from turnmill.environments.extras import import_extra
from turnmill.environments.registry import register

_MODEL = "turnmill"


class VerifiersOptions(EnvironmentOptions):
    """Arguments of the environment."""

    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of its function `load_environment`."""


@dataclass(frozen=True, slots=True)
class _RolloutFinished:
    """Event: the rollout is over and scored."""

    state: Mapping[str, Any]


Event: TypeAlias = Sequence[object] | _RolloutFinished
"""Messages that the agent is to answer, or the end of the rollout."""


@register
class Verifiers(Environment):
    """An environment of verifiers; `task` is its id: an installed module with a function `load_environment`."""

    name: ClassVar[str] = "verifiers"
    Settings: ClassVar[type[EnvironmentOptions]] = VerifiersOptions
    actions = ()
    default_action = ""

    def __init__(self, task: str | None, max_turns: int, options: VerifiersOptions) -> None:
        super().__init__(task, max_turns, options)
        if task is None:
            raise SettingsError("environment.task: verifiers needs a task. Give the id of an installed environment.")
        library = import_extra("verifiers", extra="verifiers")
        try:
            self._inner = library.load_environment(task, **options.arguments)
        except (ValueError, RuntimeError, TypeError) as error:
            raise SettingsError(
                f"environment.task: verifiers cannot load {task!r}: {error}. Install the module of that name for the "
                "interpreter environment.python, and correct environment.options.arguments."
            ) from error
        self._rows = self._inner.get_dataset()
        self._agent = _agent_class(library)()
        self._loop = asyncio.new_event_loop()
        self._rollout: asyncio.Task[None] | None = None
        self._instructions = ""

    def reset(self, seed: int) -> str:
        """Start the rollout of a row: of the evaluation set for seeds of validations, else of the training set."""
        self._cancel()
        # Loaded on demand, because it may need a download; without one the library returns the training set.
        rows = self._inner.get_eval_dataset() if seed < VALIDATION_SEEDS else self._rows
        row = dict(rows[seed % len(rows)])
        self._rollout = self._loop.create_task(self._play(row))
        messages = self._next_event()
        if isinstance(messages, _RolloutFinished):
            raise EnvironmentFailedError(
                f"The rollout of verifiers' environment {self.task!r} ended before the agent's first turn."
            )
        self._instructions = _text(messages, roles=("system",))
        return _text(messages, roles=("user", "tool"))

    def step(self, action: str) -> StepResult:
        """Pass a response to the rollout; the reward of the whole episode comes with its end."""
        self._agent.answer(action)
        event = self._next_event()
        if not isinstance(event, _RolloutFinished):
            return StepResult(_text(_since_last_response(event), roles=("user", "tool", "system")))
        state = event.state
        if state.get("error") is not None:
            raise EnvironmentFailedError(f"verifiers' environment {self.task!r} failed: {state['error']!r}.")
        metrics = {name: float(value) for name, value in (state.get("metrics") or {}).items() if value is not None}
        final = state.get("final_env_response") or ()
        observation = _text(final, roles=("user", "tool")) if not isinstance(final, str) else final
        return StepResult(observation, float(state.get("reward") or 0.0), terminated=True, info=metrics)

    def instruction_prompt(self) -> str:
        """Return the environment's own system prompt."""
        return self._instructions or "Answer step by step."

    def match_action(self, answer: str) -> str | None:
        """Return any text that is not empty."""
        return answer.strip() or None

    def close(self) -> None:
        """Cancel the rollout."""
        self._cancel()
        self._loop.close()

    async def _play(self, row: Mapping[str, object]) -> None:
        state = await self._inner.rollout(row, self._agent, _MODEL, {})
        await self._inner.rubric.score_rollout(state)
        self._agent.events.put_nowait(_RolloutFinished(state))

    def _next_event(self) -> "Event":
        """Run the rollout until its next event: a prompt for the agent, or the end."""

        async def wait() -> "Event":
            event = asyncio.ensure_future(self._agent.events.get())
            assert self._rollout is not None, "an episode begins with a reset"
            await asyncio.wait({event, self._rollout}, return_when=asyncio.FIRST_COMPLETED)
            if not event.done() and self._agent.events.empty():
                event.cancel()
                # Raises the rollout's exception.
                self._rollout.result()
            found: Event = await event
            return found

        return self._loop.run_until_complete(wait())

    def _cancel(self) -> None:
        if self._rollout is not None and not self._rollout.done():
            self._rollout.cancel()
            self._loop.run_until_complete(asyncio.gather(self._rollout, return_exceptions=True))
        self._rollout = None
        self._agent.clear()


def _agent_class(library: Any) -> Any:
    """Create the class of the client that stands for the model, a subclass of the installed library's."""
    clients = import_extra("verifiers.clients", extra="verifiers")
    types = import_extra("verifiers.types", extra="verifiers")

    class Agent(clients.Client):  # type: ignore[name-defined]
        """A client that puts prompts into a queue of events and waits for responses from outside."""

        def __init__(self) -> None:
            self.events: asyncio.Queue[Event] = asyncio.Queue()
            self._answers: asyncio.Queue[str] = asyncio.Queue()
            self._numbers = itertools.count()

        def answer(self, text: str) -> None:
            """Set the next response of the model."""
            self._answers.put_nowait(text)

        def clear(self) -> None:
            """Drop the prompts and responses of a cancelled rollout."""
            self.events, self._answers = asyncio.Queue(), asyncio.Queue()

        async def get_response(self, prompt: Sequence[object], *_: object, **__: object) -> Any:
            """Emit a prompt and wait for its response."""
            self.events.put_nowait(prompt)
            content = await self._answers.get()
            message = types.ResponseMessage(content=content, finish_reason="stop", is_truncated=False)
            number = next(self._numbers)
            return types.Response(id=str(number), created=int(time.time()), model=_MODEL, message=message)

    # The library's abstract methods convert messages into requests, which this client does not make.
    Agent.__abstractmethods__ = frozenset()
    return Agent


def _text(messages: Sequence[object], *, roles: tuple[str, ...]) -> str:
    return "\n\n".join(_content(message) for message in messages if _field(message, "role") in roles).strip()


def _since_last_response(messages: Sequence[object]) -> list[object]:
    """Return the messages after the agent's last response."""
    newest = list(itertools.takewhile(lambda message: _field(message, "role") != "assistant", reversed(messages)))
    return newest[::-1]


def _content(message: object) -> str:
    content = _field(message, "content")
    if isinstance(content, list):
        return "".join(str(_field(part, "text") or "") for part in content)
    return str(content or "")


def _field(message: object, name: str) -> object:
    """Return a field of a message, which is a dictionary or an object."""
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)

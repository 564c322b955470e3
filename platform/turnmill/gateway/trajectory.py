"""A trajectory at the gateway: a tree of generations, each recorded before its answer is sent."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from turnmill.core.errors import EpisodeError, StaleClaimError, StoreError, TurnmillError
from turnmill.core.trajectory import Turn
from turnmill.gateway.answers import Answer, AnswerRequest, FinishReason
from turnmill.gateway.engine import Engine, Sample
from turnmill.gateway.errors import ContextLengthError, StaleTrajectoryError, TurnLimitError, UnavailableError
from turnmill.gateway.messages import HistoryKeys, Message, rest_of_answer, tool_call
from turnmill.gateway.parsing import AnswerParser
from turnmill.gateway.places import Place, find_place, request_keys
from turnmill.gateway.records import Recorded, read_turn, turn_of
from turnmill.gateway.rendering import ChatRenderer
from turnmill.gateway.shared import Shared
from turnmill.gateway.tree import Tree, TreeRow
from turnmill.trajectories.request_claims import RequestClaim

CLAIM_PAUSE_SECONDS = 0.05
"""Time between two looks at a request that another process answers."""

RecordTurn = Callable[[Turn], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Model:
    """What turns conversations into tokens, and tokens into answers."""

    name: str
    engine: Engine
    renderer: ChatRenderer
    parser: AnswerParser
    end_ids: frozenset[int]
    """Tokens that end a response."""

    max_context_tokens: int
    max_answer_tokens: int | None = None
    """Limit for answers; a request may ask for fewer."""


class Trajectory:
    """Answers the requests of one trajectory, at most once each: a repeat gets the recorded answer."""

    def __init__(
        self,
        name: str,
        model: Model,
        *,
        record: RecordTurn,
        turns: Sequence[Turn] = (),
        max_turns: int | None = None,
        shared: Shared | None = None,
    ) -> None:
        """Take the recorded turns of a trajectory that goes on, and `shared` if other processes add to them."""
        self.name = name
        self.tree = Tree()
        self.turns: list[Turn] = []
        self.served: set[int] = set()
        """Numbers of the generations that were served since this object was created; of a shared trajectory, all."""

        self.num_tokens = 0
        """Tokens of all turns."""

        self._model = model
        self._record = record
        self._shared = shared
        self._max_turns = max_turns
        self._answers: list[Answer] = []
        self._numbers: dict[str, list[int]] = {}
        """Numbers of the generations by the digests of their requests."""

        self.limit_reached = asyncio.Event()
        """Set when a request is refused because of the maximum number of turns."""

        self.failure: TurnmillError | None = None
        """The error for which the last request got no answer, of engine or journal."""

        self._history = HistoryKeys()
        self._closed = False
        self._running: dict[str, asyncio.Task[list[Answer]]] = {}
        self._num_promised = 0
        self._adding = asyncio.Lock()
        for turn in turns:
            self._add(turn)

    @property
    def num_turns(self) -> int:
        """Number of generations that were served."""
        return len(self.served)

    @property
    def is_answering(self) -> bool:
        """Return whether a request is being answered."""
        return bool(self._running)

    def rows(self) -> list[TreeRow]:
        """Return the training rows of what was served."""
        return self.tree.rows(self.served)

    def last_message(self) -> Message:
        """Return the last answer that was served; an empty one if there is none."""
        return self._answers[max(self.served)].message if self.served else {"role": "assistant", "content": ""}

    async def answer(self, request: AnswerRequest) -> list[Answer]:
        """Return the answers to a request; a repeat waits for the first one, or gets what is recorded.

        A client that goes away stops nothing: its answer is recorded, and there for its repeat.
        """
        if self._closed:
            raise StaleTrajectoryError("The trajectory has ended: it takes no further request.")
        if self._has_answers(request):
            return self._serve(request.digest)
        running = self._running.get(request.digest)
        if running is None:
            running = self._running[request.digest] = asyncio.create_task(self._answer(request))
            running.add_done_callback(lambda task: self._forget(request.digest, task))
        return await asyncio.shield(running)

    async def close(self) -> None:
        """Refuse further requests, and drop those that are being answered."""
        self._closed = True
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _serve(self, key: str) -> list[Answer]:
        self.served.update(self._numbers[key])
        return [self._answers[number] for number in self._numbers[key]]

    def _forget(self, key: str, task: asyncio.Task[list[Answer]]) -> None:
        del self._running[key]
        if task.cancelled():
            return
        # Its clients may be gone: nobody else asks for the error.
        error = task.exception()
        self.failure = error if isinstance(error, (EpisodeError, StoreError, UnavailableError)) else None

    async def _answer(self, request: AnswerRequest) -> list[Answer]:
        if self._shared is None:
            return await self._sample_missing(request)
        claim = await self._claim(request, self._shared)
        if claim is None:
            return self._serve(request.digest)
        try:
            return await self._sample_missing(request)
        finally:
            self._shared.release(claim)

    async def _claim(self, request: AnswerRequest, shared: Shared) -> RequestClaim | None:
        """Claim a request, while another process answers it wait; return None once all its answers are recorded."""
        while True:
            async with self._adding:
                claim, turns = await shared.claim(request.digest, self.turns)
                self._add_new(turns)
            if self._has_answers(request):
                if claim.held:
                    shared.release(claim)
                return None
            if claim.held:
                return claim
            await asyncio.sleep(CLAIM_PAUSE_SECONDS)

    def _has_answers(self, request: AnswerRequest) -> bool:
        return len(self._numbers.get(request.digest, ())) >= request.num_answers

    async def _sample_missing(self, request: AnswerRequest) -> list[Answer]:
        """Sample the answers that are not recorded, and record them."""
        keys = request_keys(request, self._history)
        if (rest := self._rest_of_recorded(request, keys)) is not None:
            return [rest]
        # Some may be recorded by a process that died before it had them all.
        missing = range(len(self._numbers.get(request.digest, ())), request.num_answers)
        self._require_turns(len(missing))
        self._num_promised += len(missing)
        try:
            place = await asyncio.to_thread(
                find_place, request, keys, self.tree, self._model.renderer, end_ids=self._model.end_ids
            )
            asked_at, max_tokens = time.time(), self._max_tokens(request, place)
            samples = await asyncio.gather(*(self._sample(request, place, max_tokens, number) for number in missing))
            for number, sample in zip(missing, samples, strict=True):
                await self._record_sample(request, place, sample, number, max_tokens, asked_at)
        finally:
            self._num_promised -= len(missing)
        return self._serve(request.digest)

    def _require_turns(self, number: int) -> None:
        if self._max_turns is not None and self.num_turns + self._num_promised + number > self._max_turns:
            self.limit_reached.set()
            raise TurnLimitError(f"The trajectory has had its {self._max_turns} turns: it takes no further request.")

    def _rest_of_recorded(self, request: AnswerRequest, keys: Sequence[str]) -> Answer | None:
        """Return the rest of a recorded answer if the last message is a part of it, as after a stream that was cut."""
        if request.text is not None or not request.messages or request.messages[-1]["role"] != "assistant":
            return None
        for generation in self.tree.answers_to(keys[-2]):
            recorded = self._answers[generation.number]
            rest = rest_of_answer(recorded.message, request.messages[-1])
            if rest is not None and recorded.finish_reason != "length":
                self.served.add(generation.number)
                return Answer(rest, recorded.finish_reason, recorded.num_prompt_tokens, stop=recorded.stop)
        return None

    # ---- sampling ----

    def _max_tokens(self, request: AnswerRequest, place: Place) -> int:
        room = self._model.max_context_tokens - len(place.prompt_ids)
        if room <= 0:
            raise ContextLengthError(
                f"This model's maximum context length is {self._model.max_context_tokens} tokens, and the messages "
                f"have {len(place.prompt_ids)}: shorten them."
            )
        limits = (room, request.max_tokens, self._model.max_answer_tokens)
        return min(limit for limit in limits if limit is not None)

    async def _sample(self, request: AnswerRequest, place: Place, max_tokens: int, number: int) -> Sample:
        sampling: dict[str, object] = {**request.sampling, "max_tokens": max_tokens}
        if request.stop:
            # The tokens keep the stop string, as the policy sampled it; the text loses it.
            sampling |= {"stop": list(request.stop), "include_stop_str_in_output": True, "detokenize": True}
        sampled = await self._model.engine.generate(
            place.prompt_ids, sampling, trajectory=self.name, sample=number, pictures=request.pictures
        )
        if not self._model.renderer.placeholder_ids.isdisjoint(sampled.token_ids):
            raise UnavailableError("The policy generated the placeholder of a picture: ask again.")
        return sampled

    async def _record_sample(
        self, request: AnswerRequest, place: Place, sample: Sample, index: int, max_tokens: int, asked_at: float
    ) -> None:
        """Record a sample as the answer, unless another process has recorded one meanwhile."""
        answer = await asyncio.to_thread(self._parse, request, place, sample, max_tokens)
        # The journal takes one turn at a time, and its order is that of the tree.
        async with self._adding:
            while len(self._numbers.get(request.digest, ())) <= index:
                number = len(self.tree.generations)
                # Others may have come to the same place since.
                reason = place.reason or self.tree.branch_reason(place.parent, place.opening, rewritten=False)
                turn = turn_of(
                    request,
                    replace(place, reason=reason),
                    sample,
                    answer,
                    number=number,
                    asked_at=asked_at,
                    renderer=self._model.renderer,
                )
                try:
                    await self._record(turn)
                except StaleClaimError:
                    if self._shared is None:
                        raise
                    # Generations keep their numbers: the place is where it was.
                    self._add_new(await self._shared.take_over(self.turns))
                else:
                    self._add(turn)
                    return

    def _parse(self, request: AnswerRequest, place: Place, sample: Sample, max_tokens: int) -> Answer:
        text = self._model.renderer.text_of(sample.token_ids)
        found = [(text.index(stop), stop) for stop in request.stop if stop in text]
        end, stop = min(found, default=(len(text), None))
        parsed = self._model.parser.parse(text[:end], request.tools)
        message: dict[str, object] = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if parsed.calls:
            message["tool_calls"] = [
                tool_call(f"call_{uuid.uuid4().hex[:24]}", call.name, call.arguments) for call in parsed.calls
            ]
        reason: FinishReason = "tool_calls" if parsed.calls else "stop"
        cut = len(sample.token_ids) >= max_tokens and sample.token_ids[-1] not in self._model.end_ids
        if cut and stop is None:
            reason = "length"
        return Answer(message, reason, len(place.prompt_ids), sample.token_ids, sample.log_probs, stop)

    def _add_new(self, turns: Sequence[Turn]) -> None:
        for turn in turns[len(self.turns) :]:
            self._add(turn)

    def _add(self, turn: Turn) -> None:
        """Add a recorded turn to the tree and the answers."""
        recorded: Recorded = read_turn(turn, self.tree)
        self.tree.add(recorded.generation)
        self.turns.append(turn)
        self._answers.append(recorded.answer)
        self._numbers.setdefault(recorded.digest, []).append(recorded.generation.number)
        self.num_tokens += len(turn.prompt_ids) + len(turn.response_ids)
        if self._shared is not None:
            self.served.add(recorded.generation.number)

"""Agents that ask a gateway for whatever agents ask for, at random, and what became of the tokens."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.gateway import RecordedTurns, bpe_tokenizer, ids_of, scripted_model
from turnmill.gateway.answers import AnswerRequest
from turnmill.gateway.engine import Sample
from turnmill.gateway.messages import digest, normalized
from turnmill.gateway.parsing import PlainParser
from turnmill.gateway.pictures import Picture
from turnmill.gateway.trajectory import Trajectory
from turnmill.rollout.token_integrity import count_unsampled_tokens, pack_tokens

STEPS = ("on", "on", "on", "on", "branch", "repeat", "forget", "compact")
LINEAR_STEPS = ("on", "repeat")
SENT = ("fox", " the", "\n", " tool", "äö", "🦊", "answer", " ", "<b>", "agent calls")
SAMPLED = ("the ", "answer ", "fox", " and", "calls")

Chat = list[dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """What the rows of a trajectory have."""

    turns: int
    rows: int
    branches: int
    foreign_tokens: int
    """Tokens in the loss that the policy did not sample, or more often than it did."""

    lost_tokens: int
    """Tokens that the policy sampled and that are not in the loss."""

    other_prompts: int
    """Generations before which a row has other tokens than the policy had read."""

    other_records: int
    """Generations that are recorded with other tokens than were sampled, or are not in exactly one row."""


class RandomEngine:
    """Samples texts in tokens that a tokenizer would not give, as a policy may."""

    def __init__(self, source: random.Random) -> None:
        self.prompts: list[tuple[int, ...]] = []
        self.samples: list[tuple[int, ...]] = []
        self._random = source

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Mapping[str, object],
        *,
        trajectory: str,
        sample: int,
        pictures: Sequence[Picture] = (),
    ) -> Sample:
        """Return some tokens, most often with the end token."""
        ids: list[int] = []
        for piece in self._random.choices(SAMPLED, k=self._random.randint(1, 5)):
            whole = self._random.random() < 0.5
            ids += ids_of(piece) if whole else [ids_of(character)[0] for character in piece]
        if self._random.random() < 0.9:
            ids.append(bpe_tokenizer().eos_token_id)
        self.prompts.append(tuple(prompt_ids))
        self.samples.append(tuple(ids))
        return Sample(tuple(ids), (-0.5,) * len(ids))


class RandomAgent:
    """Carries on, repeats and, unless it is linear, branches, forgets and compacts."""

    def __init__(self, seed: int, *, linear: bool = False) -> None:
        self.linear = linear
        self.random = random.Random(seed)
        self.engine = RandomEngine(self.random)
        self.record = RecordedTurns()
        self.conversation = Trajectory("t", scripted_model(self.engine, parser=PlainParser()), record=self.record)
        self._chats: list[Chat] = []

    async def play(self, steps: int) -> None:
        """Ask so often; repeats count as one."""
        for _ in range(steps):
            await self._step(self.random.choice(LINEAR_STEPS if self.linear else STEPS))

    def check(self) -> Found:
        """Compare the rows with what was sampled."""
        rows = self.conversation.rows()
        samples, prompts = self.engine.samples, self.engine.prompts
        order = [number for row in rows for number in row.generations]
        trained = Counter(order)
        sampled = pack_tokens(token for number in order for token in samples[number])
        num_trained = sum(sum(row.mask) for row in rows)
        num_sampled = sum(map(len, samples))
        others = 0
        for row in rows:
            whole = (*row.prompt_ids, *row.ids)
            for number in row.generations:
                end = len(prompts[number]) + len(samples[number])
                others += whole[:end] != prompts[number] + samples[number]
        return Found(
            turns=len(samples),
            rows=len(rows),
            branches=sum(bool(generation.reason) for generation in self.conversation.tree.generations),
            foreign_tokens=count_unsampled_tokens([(row.ids, row.mask) for row in rows], sampled)
            + max(0, num_trained - num_sampled),
            lost_tokens=max(0, num_sampled - num_trained),
            other_prompts=others,
            other_records=sum(
                trained[generation.number] != 1 or generation.response_ids != sample
                for generation, sample in zip(self.conversation.tree.generations, samples, strict=True)
            ),
        )

    async def _step(self, kind: str) -> None:
        if not self._chats or kind == "compact":
            self._chats.append([_user(self._words())])
        elif kind == "branch":
            chat = self.random.choice(self._chats)
            self._chats.append(chat[: self.random.randrange(1, len(chat) + 1, 2)])
        elif kind == "forget":
            self._chats.append([self._forgotten(message) for message in self._chats[-1]])
        chat = self._chats[-1]
        if chat[-1]["role"] == "assistant":
            chat.append({**_user(self._words()), "role": self.random.choice(("user", "tool"))})
        for _ in range(2 if kind == "repeat" else 1):
            text = await self._ask(chat)
        chat.append({"role": "assistant", "content": text})

    def _forgotten(self, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "content": self._words()} if message["role"] == "assistant" else message

    async def _ask(self, chat: Chat) -> str:
        messages = tuple(map(normalized, chat))
        (answer,) = await self.conversation.answer(AnswerRequest(digest=digest(json.dumps(chat)), messages=messages))
        return str(answer.message["content"])

    def _words(self) -> str:
        return "".join(self.random.choices(SENT, k=self.random.randint(1, 8))) + "."


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}

"""A real BPE tokenizer and a scripted engine, for tests of the gateway."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from turnmill.core.trajectory import Turn
from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.engine import Engine, Sample
from turnmill.gateway.errors import UnknownKeyError
from turnmill.gateway.parsing import AnswerParser, create_parser
from turnmill.gateway.pictures import Picture
from turnmill.gateway.rendering import ChatRenderer
from turnmill.gateway.trajectory import Model, Trajectory

TEMPLATE = """
{%- if tools %}{{- '<|im_start|>system\\nTools:' }}{% for tool in tools %}{{- ' ' + tool.function.name }}
{%- endfor %}{{- '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}{% endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
"""Chat template like Qwen's."""

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the agent calls a tool to look at the result.",
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>',
    "system user assistant <tool_response> total 4 drwxr-xr-x </tool_response> I have found the answer: done.",
)


@cache
def bpe_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of scripted models."""
    return merged_bytes(CORPUS, vocabulary=600)


def merged_bytes(texts: Iterable[str], *, vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of merged bytes with the special tokens and the template of ChatML."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=TEMPLATE)


def ids_of(text: str) -> tuple[int, ...]:
    """Return the tokens of a text."""
    return tuple(bpe_tokenizer().encode(text, add_special_tokens=False))


class ScriptedEngine:
    """Answers each prompt with what the script returns for its text: a text, or tokens; None waits for ever."""

    def __init__(self, script: Callable[[str], str | Sequence[int] | None]) -> None:
        self.prompts: list[tuple[int, ...]] = []
        self.samples: list[tuple[int, ...]] = []
        self.sampling: list[Mapping[str, object]] = []
        self.answered: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        """Prompts that were answered, with the samples."""

        self.errors: list[Exception] = []
        """Errors of the next requests."""

        self.asked = asyncio.Event()
        """Set when the first request is here."""

        self._script = script

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Mapping[str, object],
        *,
        trajectory: str,
        sample: int,
        pictures: Sequence[Picture] = (),
    ) -> Sample:
        """Return the scripted response, with its end token and at most `max_tokens`."""
        self.prompts.append(tuple(prompt_ids))
        self.sampling.append(sampling)
        self.asked.set()
        if self.errors:
            raise self.errors.pop(0)
        await asyncio.sleep(0)
        response = self._script(bpe_tokenizer().decode(prompt_ids))
        if response is None:
            await asyncio.Event().wait()
            raise AssertionError
        ids = ids_of(response + "<|im_end|>") if isinstance(response, str) else tuple(response)
        ids = ids[: int(str(sampling["max_tokens"]))]
        self.samples.append(ids)
        self.answered.append((tuple(prompt_ids), ids))
        return Sample(ids, tuple(-0.5 - index / 1000 for index in range(len(ids))), (1, 2))


def scripted_model(engine: Engine, *, parser: AnswerParser | None = None, max_context_tokens: int = 100_000) -> Model:
    """Return a model with the BPE tokenizer."""
    tokenizer = bpe_tokenizer()
    return Model(
        "policy",
        engine,
        ChatRenderer(tokenizer),
        parser or create_parser(tokenizer),
        frozenset({tokenizer.eos_token_id}),
        max_context_tokens,
    )


def require_exact_rows(trajectory: Trajectory, engine: ScriptedEngine) -> None:
    """Require that each sample is in the loss once, after the tokens that the engine had read, and nothing else is."""
    rows = trajectory.rows()
    for prompt, sample in engine.answered:
        end = len(prompt) + len(sample)
        holders = [
            row
            for row in rows
            if (*row.prompt_ids, *row.ids)[:end] == prompt + sample
            and all(row.mask[len(prompt) - len(row.prompt_ids) : end - len(row.prompt_ids)])
            and len(prompt) >= len(row.prompt_ids)
        ]
        assert len(holders) == 1, bpe_tokenizer().decode(sample)
    assert sum(sum(row.mask) for row in rows) == sum(map(len, engine.samples))


class RecordedTurns:
    """Keeps the turns that a trajectory records."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    async def __call__(self, turn: Turn) -> None:
        """Keep a turn."""
        self.turns.append(turn)


def tool(name: str) -> dict[str, Any]:
    """Return the schema of a tool with one argument."""
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": "Runs it.", "parameters": parameters}}


class ScriptedTrajectories:
    """Trajectories by their keys."""

    def __init__(self, model: Model, trajectories: Mapping[str, Trajectory]) -> None:
        self.model = model
        self._trajectories = trajectories

    async def answer(self, key: str, request: AnswerRequest) -> list[Answer]:
        """Return the answers to a request."""
        if key not in self._trajectories:
            raise UnknownKeyError("The key is unknown.")
        return await self._trajectories[key].answer(request)

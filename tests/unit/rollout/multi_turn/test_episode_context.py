import asyncio
from collections.abc import Sequence

from support.gateway import bpe_tokenizer
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.journal import NoJournal
from turnmill.rollout.multi_turn.episode import MultiTurnEpisode
from turnmill.rollout.token_integrity import token_checksum
from turnmill.rollout.verl_classes import TokenOutput
from turnmill.tasks import Task

DECODE = bpe_tokenizer().decode


def episode() -> MultiTurnEpisode:
    name = EpisodeId(1, 0, 0, validate=False)
    return MultiTurnEpisode(name, Task(0, []), run_name="run", journal=NoJournal(), decode=DECODE)


def respond(played: MultiTurnEpisode, prompt_ids: Sequence[int], ids: list[int]) -> None:
    output = TokenOutput(token_ids=ids, log_probs=[0.0] * len(ids), extra_fields={})
    asyncio.run(played.record_response(prompt_ids, output, asked_at=0.0))


def test_a_context_that_grows_in_place_is_recorded_as_one_that_is_copied() -> None:
    growing, copied = episode(), episode()
    context = [1, 2, 3]
    for number in range(4):
        respond(copied, list(context), [10 + number])
        respond(growing, context, [10 + number])
        context += [10 + number]
        growing.extended_in_place(context)
        context += [20 + number, 30 + number]

    for played in (growing, copied):
        assert [each.new_ids for each in played.generations] == [(1, 2, 3), (20, 30), (21, 31), (22, 32)]
    checksums = [[each.turn.metrics["context"] for each in played.generations] for played in (growing, copied)]
    assert checksums[0] == checksums[1]
    assert checksums[0][-1] == token_checksum(context[:-3])


def test_a_context_that_is_replaced_begins_anew() -> None:
    played, context = episode(), [1, 2, 3]
    respond(played, context, [10])
    context += [10]
    played.extended_in_place(context)
    other = [1, 2, 9, 10, 20]
    respond(played, other, [11])
    # The old list is no longer the context, whatever happens to it.
    context += [99]
    respond(played, [*other, 11, 21], [12])

    assert [each.new_ids for each in played.generations] == [(1, 2, 3), tuple(other), (21,)]
    assert played.context_text(len(other) + 3) is None


def test_a_loop_may_go_on_with_a_copy_of_the_list() -> None:
    played, context = episode(), [1, 2, 3]
    respond(played, context, [10])
    context += [10]
    played.extended_in_place(context)
    copied = [*context]
    respond(played, copied, [11])
    respond(played, [*copied, 11, 21], [12])

    assert [each.new_ids for each in played.generations] == [(1, 2, 3), (), (21,)]


def test_a_list_that_has_more_than_the_response_is_compared() -> None:
    played, context = episode(), [1, 2, 3]
    respond(played, context, [10])
    context += [10, 11]
    played.extended_in_place(context)
    respond(played, context, [12])

    assert played.generations[1].new_ids == (11,)
    del context[1]
    respond(played, context, [13])
    assert played.generations[2].new_ids == (1, 3, 10, 11)


def test_the_text_of_a_context_is_put_together_unless_a_character_is_cut() -> None:
    tokenizer = bpe_tokenizer()
    parts = [tokenizer.encode(text, add_special_tokens=False) for text in ("a prompt", "one", " and ", "two")]
    cut = tokenizer.encode("\U0001f600", add_special_tokens=False)
    whole, halved = episode(), episode()
    context: list[int] = []
    for number in (0, 2):
        context += parts[number]
        respond(whole, list(context), parts[number + 1])
        context += parts[number + 1]
    respond(halved, cut[:1], cut[1:])

    assert whole.context_text(len(context)) == tokenizer.decode(context) == "a promptone and two"
    assert whole.context_text(len(context) + 1) is None
    assert len(cut) > 1
    assert halved.context_text(len(cut)) is None

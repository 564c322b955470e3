import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnmill.rollout.tokens import Tokens
from turnmill.rollout.tool_agent.context import Context

PROMPT = (1, 2, 3)


def response(*ids: int) -> Tokens:
    return Tokens.sampled(ids, [-0.1 * i for i in ids])


@pytest.mark.feature("verl-tool", "contexts that are exact to the token")
def test_the_context_holds_prompt_responses_and_observations():
    context = Context(PROMPT, budget=10)

    context.begin_turn(response(4, 5))
    context.add(Tokens.given((6,)))
    context.begin_turn(response(7))

    assert context.ids == [1, 2, 3, 4, 5, 6, 7]
    assert context.room == 6
    (row,) = context.rows()
    assert row.response.mask == (1, 1, 0, 1)
    assert row.response.log_probs == (-0.4, -0.5, 0.0, -0.7000000000000001)


def test_observations_can_be_trained_on():
    assert Tokens.given((1, 2), masked=False).mask == (1, 1)


@pytest.mark.feature("verl-tool", "a rolling window")
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=12),
    st.integers(8, 24),
)
def test_rolling_trains_every_response_once_in_the_context_it_was_sampled_in(turns, budget):
    context = Context(PROMPT, budget=budget)
    contexts = []
    next_id = 10
    for response_length, observation_length in turns:
        if context.room < budget // 2:
            context.roll()
        assert context.room >= response_length or budget < 12
        contexts.append(tuple(context.ids))
        context.begin_turn(response(*range(next_id, next_id + min(response_length, context.room))))
        context.add(Tokens.given(range(1000 + next_id, 1000 + next_id + observation_length)))
        next_id += response_length

    rows = context.rows()

    learned = [i for row in rows for i, mask in zip(row.response.ids, row.response.mask, strict=True) if mask]
    assert len(learned) == len(set(learned))
    for row in rows:
        assert row.prompt_ids[:3] == PROMPT
        assert row.prompt_ids in contexts
        assert len(row.prompt_ids) + len(row.response) <= len(PROMPT) + budget


@pytest.mark.feature("verl-tool", "a rolling window")
@pytest.mark.parametrize(("lengths", "read"), [((3, 2, 2, 2), 2), ((3, 2, 1, 2), 3), ((3, 2, 6), 0), ((1, 1, 1), 3)])
def test_rolling_drops_no_more_turns_than_it_takes_to_free_half_of_the_budget(lengths, read):
    context = Context(PROMPT, budget=10)
    for number, length in enumerate(lengths):
        context.begin_turn(response(*[10 + number] * length))

    context.roll()

    kept = lengths[len(lengths) - read :]
    assert len(context.ids) == len(PROMPT) + sum(kept)
    assert context.room >= 5


IMAGE = 9
"""Placeholder; each image is a run of three."""


def context_with_images(**settings: int | str) -> Context:
    """Return a context of two turns, with images `a` in the prompt and `b` and `c` in the observations."""
    context = Context((1, IMAGE, IMAGE, IMAGE, 2), images=["a"], image_id=IMAGE, placeholders={IMAGE}, **settings)
    for image in ("b", "c"):
        context.begin_turn(response(4))
        context.add(Tokens.given((5, IMAGE, IMAGE, IMAGE, 6)), [image])
    return context


@pytest.mark.feature("verl-tool", "placeholders are not split")
@pytest.mark.parametrize(
    ("settings", "images", "num_tokens"),
    [
        ({"budget": 12}, ("a", "b", "c"), 12),
        ({"budget": 10}, ("a", "b"), 8),
        ({"budget": 10, "cut_side": "right"}, ("a", "b", "c"), 10),
        ({"budget": 12, "max_start": 3}, ("b", "c"), 12),
        ({"budget": 12, "max_start": 4}, ("a", "b", "c"), 12),
    ],
)
def test_a_row_has_the_images_whose_placeholders_it_has(settings, images, num_tokens):
    context = context_with_images(**settings)

    (row,) = context.rows()

    assert context.images == ["a", "b", "c"]
    assert (row.images, len(row.response)) == (images, num_tokens)
    assert [*row.prompt_ids, *row.response.ids].count(IMAGE) == 3 * len(images)


def test_images_of_turns_that_are_dropped_are_not_read_again():
    context = context_with_images(budget=12)

    context.roll()
    context.begin_turn(response(7))

    assert context.images == ["a", "c"]
    first, second = context.rows()
    assert (first.images, second.images) == (("a", "b", "c"), ("a", "c"))

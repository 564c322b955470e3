"""Images of agents with tools, in prompts and observations, which a tiny model with random weights reads."""

import base64
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from support.http_tools import HttpTools
from support.vision import VisionModel, tiny_vision_model
from turnmill.core.trajectory import EpisodeFailure
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.journal import StoreJournal
from turnmill.rollout.rows import EpisodeRow
from turnmill.rollout.tool_agent.rows import verl_rows
from turnmill.testing.agent_loops import END, ToolLoopHarness, tool_job
from turnmill.testing.conversations import THINKS
from turnmill.testing.policies import Request
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal

LOOK, DONE = "<py>look</py>", f"It is done{END}"
IMAGE = "<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|image_pad|><|vision_end|>"
Make = Callable[..., ToolLoopHarness]


def picture(colour: str) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


@pytest.fixture(scope="module")
def model() -> VisionModel:
    model = tiny_vision_model()
    model.tokenizer.chat_template = model.processor.chat_template = THINKS
    return model


@pytest.fixture
async def server() -> AsyncIterator[HttpTools]:
    """A tool server whose observation is `answers[0]`."""
    async with HttpTools(lambda call: server.answers[0]) as server:
        server.answers = [{"obs": "This: <image>!", "image": picture("red")}]
        yield server


@pytest.fixture
async def new_harness(tmp_path: Path, model: VisionModel, server: Any) -> AsyncIterator[Make]:
    made: list[ToolLoopHarness] = []

    def make(script: Any, *, image: str | None = None, eyes: bool = True, **settings: Any) -> ToolLoopHarness:
        task: dict[str, Any] = {"prompt": [{"role": "user", "content": "Look." if image is None else "Look: <image>"}]}
        if image is not None:
            Image.new("RGB", (70, 70), image).save(tmp_path / "seen.png")
            task["images"] = [str(tmp_path / "seen.png")]
        (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
        journal = settings.pop("journal", None)
        options = {"path": str(tmp_path / "tasks.jsonl"), "validationTasks": 0}
        options["reward"] = "turnmill.testing.conversations:says_done"
        job = tool_job({"name": "dataset", "options": options}, **settings)
        made.append(
            ToolLoopHarness(tmp_path / "run", script, job, server.url, model=model if eyes else None, journal=journal)
        )
        return made[-1]

    yield make
    for harness in made:
        await harness.loop.close()


async def play(harness: ToolLoopHarness) -> list[EpisodeRow]:
    return verl_rows(await harness.play(), log_probs=True)


@pytest.mark.feature("verl-tool", "observations with pictures and sound")
@pytest.mark.parametrize("chat", [False, True])
async def test_the_policy_reads_and_learns_from_the_picture_that_a_tool_returns(new_harness, model, chat):
    harness = new_harness([LOOK, DONE], enableMtrl=chat)

    (row,) = await play(harness)

    assert harness.policy.images == [0, 1]
    assert f"This: {IMAGE}!" in harness.prompts[1]
    learned = [token for token, mask in zip(row.response_ids, row.response_mask, strict=True) if mask]
    assert model.tokenizer.decode(learned) == LOOK + DONE
    features = model.processor.image_processor(row.multi_modal_data["images"], return_tensors="pt")
    again = model.log_probs(row.prompt_ids, row.response_ids, **features)
    recomputed = [log_prob for log_prob, mask in zip(again, row.response_mask, strict=True) if mask]
    sampled = [log_prob for log_prob, mask in zip(row.response_logprobs, row.response_mask, strict=True) if mask]
    assert recomputed == pytest.approx(sampled, abs=1e-4)


async def test_log_probs_depend_on_the_picture(new_harness, server):
    log_probs = []
    for colour in ("red", "tan"):
        server.answers = [{"obs": "<image>", "image": picture(colour)}]
        (row,) = await play(new_harness([LOOK, DONE]))
        log_probs.append(row.response_logprobs[-5:])

    assert log_probs[0] != pytest.approx(log_probs[1], abs=1e-6)


async def test_frames_without_a_place_in_the_text_are_before_it(new_harness, server):
    server.answers = [{"obs": "a<image>b", "image": [picture("red"), picture("tan"), picture("blue")]}]
    harness = new_harness([LOOK, DONE])

    (row,) = await play(harness)

    assert f"{IMAGE}{IMAGE}a{IMAGE}b" in harness.prompts[1]
    assert [image.getpixel((0, 0)) for image in row.multi_modal_data["images"]] == [
        (255, 0, 0), (210, 180, 140), (0, 0, 255)
    ]  # fmt: skip


@pytest.mark.feature("verl-tool", "placeholders are not split")
@pytest.mark.parametrize(("side", "kept"), [("left", (0, 0, 255)), ("right", (255, 0, 0))])
async def test_a_picture_that_is_truncated_away_is_not_given_to_the_policy(new_harness, server, side, kept):
    server.answers = [{"obs": "<image> and <image>", "image": [picture("red"), picture("blue")]}]
    harness = new_harness([LOOK, DONE], maxObsLength=8, truncateObsSide=side)

    (row,) = await play(harness)

    assert harness.prompts[1].count("<|image_pad|>") == 4
    assert harness.policy.images == [0, 1]
    assert [image.getpixel((0, 0)) for image in row.multi_modal_data["images"]] == [kept]


async def test_a_row_that_ends_within_a_picture_has_neither_its_tokens_nor_the_picture(new_harness):
    harness = new_harness([LOOK], maxResponseLength=len(LOOK) + 9)

    (row,) = await play(harness)

    assert len(row.response_ids) == len(LOOK) + len("This: ") + 1
    assert not row.multi_modal_data


@pytest.mark.feature("verl-tool", "observations with pictures and sound")
async def test_pictures_of_a_task_are_in_the_prompt_and_go_to_the_tools(new_harness, server):
    harness = new_harness([LOOK, DONE], image="blue")

    (row,) = await play(harness)

    assert f"Look: {IMAGE}" in harness.prompts[0]
    assert harness.policy.images == [1, 2]
    assert [image.size for image in row.multi_modal_data["images"]] == [(70, 70), (64, 64)]
    (sent,) = server.calls[0]["images"]
    with Image.open(io.BytesIO(base64.b64decode(sent.partition(",")[2]))) as seen:
        assert (seen.size, seen.getpixel((0, 0))) == ((70, 70), (0, 0, 255))


async def test_a_prompt_with_pictures_that_is_too_long_fails_its_trajectory_alone(new_harness):
    failure = await new_harness([DONE], image="blue", maxPromptLength=8).play()

    assert isinstance(failure, EpisodeFailure)
    assert "Multimodal prompt produced" in failure.message


async def test_a_resumed_trajectory_has_the_pictures_of_its_turns(new_harness, tmp_path):
    def crash_at_second(request: Request) -> str:
        if "<|image_pad|>" in request.prompt:
            raise KeyboardInterrupt
        return LOOK

    with EmbeddedStore() as store:
        expected = await new_harness([LOOK, DONE]).play()
        name = RunFolder(tmp_path / "run").run_name()
        first, second = (StoreJournal(TrajectoryJournal.from_url(store.url, name)) for _ in range(2))
        with pytest.raises(KeyboardInterrupt):
            await new_harness(crash_at_second, journal=first).play(step=2)
        resumed = await new_harness([DONE], journal=second).play(step=2)

    (row,), (expected_row,) = resumed.rows, expected.rows
    assert row.response == expected_row.response
    assert [image.tobytes() for image in row.images] == [image.tobytes() for image in expected_row.images]


async def test_pictures_fail_the_trajectory_of_a_model_for_text(new_harness):
    failure = await new_harness([LOOK, DONE], eyes=False).play()

    assert isinstance(failure, EpisodeFailure)
    assert "the model accepts only text: use a multi-modal model" in failure.message


@pytest.mark.parametrize("image", ["/etc/passwd", "data:image/png;base64,?", picture("red")[:60]])
async def test_what_is_no_picture_fails_the_trajectory(new_harness, server, image):
    server.answers = [{"obs": "<image>", "image": image}]

    failure = await new_harness([LOOK, DONE]).play()

    assert isinstance(failure, EpisodeFailure)
    assert "a tool returned an image" in failure.message.lower()
    assert len(server.calls) == 1


async def test_a_placeholder_that_the_policy_generates_fails_the_trajectory(new_harness):
    failure = await new_harness([f"<|image_pad|>{END}"]).play()

    assert isinstance(failure, EpisodeFailure)
    assert "generated the placeholder of an image" in failure.message

"""Images in prompts and observations, which a processor and a tiny model with random weights read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transfer_queue
from PIL import Image
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from support.verl_tools import CAMERA_FILE
from support.vision import VisionModel, tiny_vision_model
from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.multi_turn.prompt_length import prompt_length
from turnmill.testing.agent_loops import END
from turnmill.testing.conversations import ConversationHarness, conversation_job

DONE = f"It is done{END}"
IMAGE = "<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|image_pad|><|vision_end|>"
Make = Callable[..., ConversationHarness]


def photograph(colour: str) -> str:
    return f'<tool_call>{{"name": "photograph", "arguments": {{"colour": "{colour}"}}}}</tool_call>{END}'


@pytest.fixture(scope="module")
def model() -> VisionModel:
    return tiny_vision_model()


@pytest.fixture
def new_harness(tmp_path: Path, model: VisionModel) -> Make:
    (tmp_path / "tools.yaml").write_text(CAMERA_FILE)

    def make(script: Any, *, image: str | None = None, **agent: Any) -> ConversationHarness:
        task: dict[str, Any] = {"prompt": [{"role": "user", "content": "Look." if image is None else "Look: <image>"}]}
        if image is not None:
            Image.new("RGB", (70, 70), image).save(tmp_path / "seen.png")
            task["images"] = [str(tmp_path / "seen.png")]
        (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
        job = conversation_job(tmp_path / "tasks.jsonl", toolConfigPath=str(tmp_path / "tools.yaml"), **agent)
        return ConversationHarness(tmp_path, script, job, model=model)

    return make


async def queued_fields(harness: ConversationHarness, row: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what verl's worker puts into the queue for a row: positions, and the model's inputs for the images."""
    put: list[dict[str, Any]] = []

    async def keep(**given: Any) -> None:
        put.append(given)

    monkeypatch.setattr(transfer_queue, "async_kv_batch_put", keep)
    worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
    harness.worker._compute_teacher_logprobs = _nothing
    given = {"uid": "task0", "session_id": 0, "index": 0, "global_steps": 1, "raw_prompt": []}
    await worker._agent_loop_postprocess(harness.worker, row, False, **given)
    ((fields,),) = ((each["fields"] for each in put),)
    row = fields[0]
    return {name: _plain(row[name]) for name in ("position_ids", "multi_modal_inputs")}


def _plain(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else getattr(value, "data", value)


async def _nothing(*_: Any, **__: Any) -> None:
    pass


@pytest.mark.feature("verl's multi-turn", "pictures from tools")
@pytest.mark.feature("verl-tool", "observations with pictures and sound")
async def test_the_policy_reads_and_learns_from_the_picture_that_a_tool_returns(new_harness, model, monkeypatch):
    harness = new_harness([photograph("red"), DONE])

    (row,) = await harness.play()

    assert harness.policy.images == [0, 1]
    assert f"<tool_response>\n{IMAGE}all red\n</tool_response>" in harness.prompts[1]
    learned = [token for token, mask in zip(row.response_ids, row.response_mask, strict=True) if mask]
    assert harness.tokenizer.decode(learned) == photograph("red") + DONE
    fields = await queued_fields(harness, row, monkeypatch)
    # Four rows of positions: of the text, and in time, height and width.
    assert fields["position_ids"].shape == (4, len(row.prompt_ids) + len(row.response_ids))
    inputs = {name: fields["multi_modal_inputs"][name] for name in ("pixel_values", "image_grid_thw")}
    positions = fields["position_ids"][1:, None]
    again = model.log_probs(row.prompt_ids, row.response_ids, **inputs, position_ids=positions)
    recomputed = [log_prob for log_prob, mask in zip(again, row.response_mask, strict=True) if mask]
    sampled = [log_prob for log_prob, mask in zip(row.response_logprobs, row.response_mask, strict=True) if mask]
    assert recomputed == pytest.approx(sampled, abs=1e-4)


async def test_log_probs_depend_on_the_picture(new_harness):
    log_probs = []
    for colour in ("red", "tan"):
        (row,) = await new_harness([photograph(colour), DONE]).play()
        log_probs.append(row.response_logprobs[-len(DONE) :])

    assert not torch.allclose(torch.tensor(log_probs[0][-5:]), torch.tensor(log_probs[1][-5:]), atol=1e-6)


@pytest.mark.feature("verl's multi-turn", "pictures of a task")
async def test_pictures_of_a_task_are_placed_as_in_its_prompt(new_harness):
    harness = new_harness([photograph("red"), DONE], image="blue")

    (row,) = await harness.play()

    assert harness.policy.images == [1, 2]
    assert f"Look: {IMAGE}" in harness.prompts[0]
    assert [picture.size for picture in row.multi_modal_data["images"]] == [(70, 70), (64, 64)]


@pytest.mark.feature("verl's multi-turn", "filtering of overlong prompts")
@pytest.mark.parametrize("image", ["blue", None])
async def test_the_length_of_a_prompt_is_that_which_the_policy_reads_with_its_picture(new_harness, image):
    harness = new_harness([DONE], image=image)

    (row,) = await harness.play()

    worker = harness.worker
    task = worker.sources.training.training(0)
    assert prompt_length(task, worker.tools, worker.tokenizer, worker.processor, {}) == len(row.prompt_ids)


@pytest.mark.feature("verl's multi-turn", "pictures of a task")
@pytest.mark.parametrize("flag", [True, False])
async def test_loops_receive_processed_pictures_if_the_job_asks_for_them(new_harness, monkeypatch, flag):
    given = {}
    harness = new_harness([DONE], image="blue", defaultAgentLoop="single_turn_agent", returnMultiModalInputs=flag)
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    original = SingleTurnAgentLoop.run

    async def run(self: Any, sampling_params: dict[str, Any], **row: Any) -> Any:
        given.update(row)
        return await original(self, sampling_params, **row)

    monkeypatch.setattr(SingleTurnAgentLoop, "run", run)

    await harness.play()

    assert ("multi_modal_inputs" in given) is flag
    if flag:
        assert given["multi_modal_inputs"]["pixel_values"].shape[0] == 16


@pytest.mark.feature("verl's multi-turn", "pictures from tools")
async def test_a_picture_outside_a_list_is_an_error_of_the_tool(new_harness):
    harness = new_harness([photograph("none"), DONE], maxResponseLength=2048)

    await harness.play()

    assert "Error executing tool 'photograph': 1 validation error for ToolResponse" in harness.prompts[1]


@pytest.mark.feature("verl's multi-turn", "pictures from tools")
async def test_videos_of_tools_fail_the_trajectory(new_harness):
    failure = await new_harness([photograph("film"), DONE]).play()

    assert isinstance(failure, EpisodeFailure)
    assert "Multimedia type 'video' is not currently supported" in failure.message


async def test_pictures_fail_the_trajectory_of_a_model_for_text(new_harness, tmp_path):
    harness = new_harness([photograph("red"), DONE])
    harness.worker.processor = None

    failure = await harness.play()

    assert isinstance(failure, EpisodeFailure)
    assert failure.cause == "agent_loop"


async def test_each_row_of_a_retokenized_context_has_its_own_pictures(new_harness):
    first = "<think>light</think>" + photograph("red")
    harness = new_harness([first, photograph("tan"), DONE], useInferenceChatTemplate=True, maxResponseLength=1024)
    harness.tokenizer.chat_template = harness.tokenizer.chat_template.replace(
        "loop.index0 < asked.last and", "not loop.last and"
    )
    harness.worker.processor.chat_template = harness.tokenizer.chat_template

    rows = await harness.play()

    assert [len(row.multi_modal_data.get("images", ())) for row in rows] == [0, 2]

"""Programs that send pictures to the policy, which a tiny model with random weights reads and is trained on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support.pictures import IMAGE
from support.training_runs import TrainingRun
from support.vision import VisionModel, save_vision_model, tiny_vision_model
from turnmill.core.errors import InferenceError
from turnmill.core.trajectory import EpisodeFailure
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.rollout.harness.episode import EpisodeResult
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.rollout.journal import Journal, StoreJournal
from turnmill.rollout.rows import episode_rows
from turnmill.testing.agent_loops import END, SAMPLING, job_of
from turnmill.testing.conversations import THINKS
from turnmill.testing.policies import Request, Script
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal

LOOKS = """
import base64, io, json, sys

import openai
from PIL import Image

json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)


def picture(colour):
    file = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(file, format="PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def ask(messages):
    return client.chat.completions.create(model="policy", messages=messages, max_tokens=8).choices[0].message.content


messages = [{"role": "user", "content": [{"type": "text", "text": "Look: "}, picture("red")]}]
first = ask(messages)
messages += [{"role": "assistant", "content": first}]
for colour in ("blue", "tan"):
    shown = {"role": "user", "content": [picture(colour), {"type": "text", "text": "?"}]}
    last = ask([*messages, shown])
print(json.dumps({"reward": len(set(first)) / 10, "answer": last}))
"""
"""Asks twice after the same answer, with another picture each."""

Begin = Callable[..., HarnessLoop]


@pytest.fixture(scope="module")
def model() -> VisionModel:
    model = tiny_vision_model()
    model.tokenizer.chat_template = model.processor.chat_template = THINKS
    return model


@pytest.fixture
async def begin(tmp_path: Path, model: VisionModel) -> AsyncIterator[Begin]:
    loops: list[HarnessLoop] = []

    def create(script: Script, *, journal: Journal | None = None, eyes: bool = True) -> HarnessLoop:
        (tmp_path / "agent.py").write_text(LOOKS)
        RunFolder(tmp_path / "run").create()
        agent = {"type": "harness", "command": ["{python}", str(tmp_path / "agent.py")], "groupSize": 2}
        agent |= {"reward": "program", "maxPromptLength": 256, "maxResponseLength": 256}
        loops.append(
            HarnessLoop(
                server_manager=model.policy(script),  # type: ignore[arg-type]
                tokenizer=model.tokenizer,  # type: ignore[arg-type]
                processor=model.processor if eyes else None,
                job=job_of(agent, {"name": "arithmetic"}, algorithm={"type": "grpo"}, tasksPerStep=1),
                run_dir=tmp_path / "run",
                journal=journal,
            )
        )
        return loops[-1]

    yield create
    for loop in loops:
        await loop.close()


async def play(loop: HarnessLoop) -> EpisodeResult | EpisodeFailure:
    return await loop.run(SAMPLING, index=0, session_id=0, global_steps=1)


def of_prompt(request: Request) -> str:
    """Answer by the number of pictures, as requests after a restart come in another order."""
    return f"saw {request.prompt.count(IMAGE)}{END}"


async def test_rows_have_the_pictures_that_the_policy_read(begin: Begin, model: VisionModel):
    loop = begin(of_prompt)

    result = await play(loop)

    assert isinstance(result, EpisodeResult), result
    policy: Any = loop.client
    assert policy.images == [1, 2, 2]
    assert [request.prompt.count(IMAGE) for request in policy.requests] == [1, 2, 2]
    rows = episode_rows(result.rows, result.summary)
    colours = [[image.getpixel((0, 0)) for image in row.multi_modal_data["images"]] for row in rows]
    assert colours == [[(255, 0, 0), (0, 0, 255)], [(255, 0, 0), (210, 180, 140)]]
    for row in rows:
        features = model.processor.image_processor(row.multi_modal_data["images"], return_tensors="pt")
        again = model.log_probs(row.prompt_ids, row.response_ids, **features)
        learned = [pair for *pair, mask in zip(again, row.response_logprobs, row.response_mask, strict=True) if mask]
        assert [pair[0] for pair in learned] == pytest.approx([pair[1] for pair in learned], abs=1e-4)
    assert sum(sum(row.response_mask) for row in rows) == 3 * len("saw 1") + 3


async def test_a_trajectory_that_goes_on_after_a_restart_has_its_pictures(begin: Begin, tmp_path: Path):
    crashed, asked = asyncio.Event(), []

    def crash_at_the_third(request: Request) -> str:
        asked.append(request.prompt)
        if len(asked) == 3:
            crashed.set()
            raise InferenceError("the engine is gone")
        return of_prompt(request)

    expected = await play(begin(of_prompt))
    with EmbeddedStore() as store:
        first, second = (StoreJournal(TrajectoryJournal.from_url(store.url, tmp_path.name)) for _ in range(2))
        playing = asyncio.create_task(play(begin(crash_at_the_third, journal=first)))
        await crashed.wait()
        playing.cancel()
        await asyncio.wait([playing])
        loop = begin(of_prompt, journal=second)
        result = await play(loop)

    assert isinstance(result, EpisodeResult), result
    assert isinstance(expected, EpisodeResult)
    assert result.summary.metrics["turns_carried_on"] == 2
    policy: Any = loop.client
    # The recorded answers are not sampled again.
    assert policy.images == [2]
    assert [row.response for row in result.rows] == [row.response for row in expected.rows]
    assert [[image.tobytes() for image in row.images] for row in result.rows] == [
        [image.tobytes() for image in row.images] for row in expected.rows
    ]


async def test_a_program_whose_model_reads_text_alone_is_told_so(begin: Begin):
    failure = await play(begin(of_prompt, eyes=False))

    assert isinstance(failure, EpisodeFailure)
    assert "this model reads text alone" in failure.message


# Rewards differ between the trajectories of a group, as random answers have different numbers of characters.
JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: pictures}
spec:
  model: {path: MODEL}
  agent: {type: harness, command: ["{python}", AGENT], reward: program, groupSize: 4, maxTurns: 3, maxPromptLength: 96,
    maxResponseLength: 96, maxConcurrentTrajectories: 8}
  environment: {name: "support.tasks:CoinFlips"}
  algorithm: {type: grpo, kl: {coefficient: 0}, minibatchTasks: 2}
  training: {steps: 1, tasksPerStep: 2, validation: {episodes: 0}}
  resources: {device: cpu}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_model_learns_from_pictures_that_a_program_sent(tmp_path: Path):
    pytest.importorskip("torchvision")
    save_vision_model(tmp_path / "model", THINKS)
    (tmp_path / "agent.py").write_text(LOOKS)
    job = JOB.replace("MODEL", str(tmp_path / "model")).replace("AGENT", str(tmp_path / "agent.py"))
    (tmp_path / "job.yaml").write_text(job)

    with TrainingRun(tmp_path / "job.yaml", tmp_path / "run") as run:
        run.train()

    (step,) = [row for row in run.metrics if row["step"] == 1]
    assert step["actor/grad_norm"] > 0
    # Of a picture that only one of them sees, k3 is 2e-4.
    assert step["rollout_corr/k3_kl"] < 1e-7
    assert step["training/rollout_probs_diff_max"] < 1e-6
    assert step["turnmill/token_mismatches"] == 0
    # Two rows of each trajectory: after the same answer, the program has shown two pictures.
    episodes = list(TrajectoryLog(RunFolder(run.folder)).read_episodes())
    assert [episode.failed_cause for episode in episodes] == [None] * 8
    assert step["turnmill/tool/branches_sibling/min"] == 1

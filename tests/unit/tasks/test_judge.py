import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from support.model_server import ScriptedModel, served
from turnmill.core.errors import RewardError, SettingsError
from turnmill.rollout.rewards import compute_reward
from turnmill.tasks import Answer, Task, create_source
from turnmill.tasks.base import TaskSource
from turnmill.tasks.reward_model import RewardModel

QUESTION = "What is the capital of Spain?"


class JudgedTasks:
    """A data set whose rewards a scripted judge gives."""

    def __init__(self, model: ScriptedModel, url: str, file: str) -> None:
        self.model = model
        self._url, self._file = url, file

    def source(self, **judge: Any) -> TaskSource:
        options = {"url": self._url, "model": "judge", "retries": 0, **judge}
        return create_source("dataset", {"path": self._file, "validationTasks": 0, "reward": "judge", "judge": options})

    def answers(self, *verdicts: str | int) -> None:
        """Give these verdicts, one after the other and the last one again; a number is the status of an error."""
        remaining = list(verdicts)

        def answer(body: dict[str, Any]) -> httpx.Response:
            verdict = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            if isinstance(verdict, int):
                return httpx.Response(verdict, json={"error": {"message": "busy"}})
            message = {"role": "assistant", "content": verdict}
            return httpx.Response(200, json={"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

        self.model.answer = answer


@pytest.fixture
def tasks(tmp_path) -> Iterator[JudgedTasks]:
    file = tmp_path / "tasks.jsonl"
    file.write_text(f'{{"prompt": "{QUESTION}", "answer": "Madrid"}}\n')
    model = ScriptedModel([])
    with served(model) as url:
        yield JudgedTasks(model, url, str(file))


def answer(text: str) -> Answer:
    return Answer(text, text, text)


async def reward(source: TaskSource, text: str) -> float:
    return await compute_reward(answer(text), source.training(0), source, episode_name="episode 7")


async def test_the_last_score_of_a_verdict_is_the_reward_within_its_range(tasks):
    tasks.answers("Score: 2 at first, but it is right.\n**Score: 7.5**")

    assert await reward(tasks.source(), "Madrid") == 0.75
    assert await reward(tasks.source(lowest=5, highest=10), "Madrid") == 0.5


async def test_a_judge_reads_task_answer_and_truth(tasks):
    tasks.answers("Score: 1")

    await reward(tasks.source(), "It is {truth}, I think")

    (request,) = tasks.model.requests
    (message,) = request["messages"]
    assert QUESTION in message["content"]
    assert "It is {truth}, I think" in message["content"]
    assert "Madrid" in message["content"]
    assert request["temperature"] == 0


async def test_equal_answers_are_judged_once(tasks):
    tasks.answers("Score: 10")
    source = tasks.source()

    assert await asyncio.gather(*(reward(source, "Madrid") for _ in range(8))) == [1.0] * 8
    assert await reward(source, "Madrid") == 1.0
    assert len(tasks.model.requests) == 1


async def test_a_trajectory_that_ends_does_not_take_the_verdict_from_another(tasks):
    tasks.answers("Score: 10")
    source = tasks.source()
    first, second = (asyncio.create_task(reward(source, "Madrid")) for _ in range(2))
    await asyncio.sleep(0)

    first.cancel()

    assert await second == 1.0


@pytest.mark.parametrize("verdict", ["I cannot say.", "Score: 11", "Score: -1"])
async def test_a_verdict_without_a_valid_score_is_asked_for_again(tasks, verdict):
    tasks.answers(verdict, "Score: 5")

    assert await reward(tasks.source(), "Madrid") == 0.5
    first, second = tasks.model.requests
    assert (first["seed"], first["temperature"]) != (second["seed"], second["temperature"])


async def test_a_judge_that_gives_no_score_fails_the_trajectory_and_is_asked_anew_for_the_next(tasks):
    tasks.answers("I cannot say.")
    source = tasks.source()

    with pytest.raises(RewardError, match=r"episode 7: .*no score from 0 to 10 in 3 verdicts.*'I cannot say\.'"):
        await reward(source, "Madrid")
    tasks.answers("Score: 10")

    assert await reward(source, "Madrid") == 1.0


async def test_a_request_that_fails_is_sent_again(tasks):
    tasks.answers(503, "Score: 10")

    assert await reward(tasks.source(retries=1), "Madrid") == 1.0


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        pytest.param(lambda tasks: tasks.answers(503), "InternalServerError", id="overloaded"),
        pytest.param(lambda tasks: tasks.answers(401), "AuthenticationError", id="wrong key"),
        pytest.param(lambda tasks: setattr(tasks, "_url", "http://127.0.0.1:9/v1"), "APIConnectionError", id="down"),
    ],
)
async def test_a_judge_that_does_not_answer_fails_the_trajectory(
    tasks: JudgedTasks, answers: Callable[[JudgedTasks], None], message: str
):
    answers(tasks)

    with pytest.raises(RewardError, match=rf"episode 7: .*the judge judge at .* did not answer: {message}"):
        await reward(tasks.source(), "Madrid")


async def test_no_more_requests_are_in_flight_than_the_job_allows(tasks):
    tasks.answers("Score: 10")
    source = tasks.source(concurrency=2)
    judge = source._judge._verdict
    running, most = 0, 0

    async def counted(prompt: str, own: RewardModel | None, *, seed: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await judge(prompt, own, seed=seed)
        finally:
            running -= 1

    source._judge._verdict = counted
    await asyncio.gather(*(reward(source, f"Madrid {number}") for number in range(6)))

    assert most == 2


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ({"lowest": 10}, "lowest (10) must be less than highest (10)"),
        ({"score": "Score"}, "needs a group"),
        ({"score": "Score: ("}, "no regular expression"),
        ({"prompt": "Is {truth} right?"}, "it judges nothing"),
        ({"url": "judge:8000"}, "environment.options.judge.url"),
        ({"keyVariable": "NO_SUCH_KEY"}, "environment.options.judge.keyVariable: the environment has no variable"),
    ],
)
def test_settings_of_a_judge_that_cannot_work_are_refused(tasks, judge, message):
    with pytest.raises(SettingsError) as refused:
        tasks.source(**judge)

    assert message in str(refused.value)


def test_settings_of_a_judge_are_refused_without_one(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "a"}\n')

    with pytest.raises(SettingsError, match="the section `judge` is for `reward: judge`"):
        create_source("dataset", {"path": str(file), "judge": {}})


def test_the_key_comes_from_the_environment(tasks, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")

    assert tasks.source(keyVariable="JUDGE_KEY")._judge._client.api_key == "secret"


def test_a_reward_that_is_computed_at_once_is_no_judges(tasks):
    with pytest.raises(TypeError, match="awaited"):
        tasks.source().reward(Task(0, []), answer("Madrid"))

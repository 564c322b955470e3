"""The client of the run's reward model, against servers over HTTP."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.model_server import ScriptedModel, served
from turnmill.core.errors import RewardError, SettingsError
from turnmill.core.ports import free_port
from turnmill.rollout.rewards import compute_reward
from turnmill.tasks import Answer, TaskSource, create_source, reward_model
from turnmill.tasks.reward_model import NAME, RewardModel

TRIED = Answer("4", "4", "I add. 4")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(reward_model, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(reward_model, "RESTART_SECONDS", 0.2)


def announce(file: Path, *urls: str) -> RewardModel:
    file.write_text(json.dumps({"urls": [url.removesuffix("/v1") for url in urls], "key": "secret"}))
    return RewardModel(file)


def source(tmp_path: Path, model: RewardModel | None, **options: Any) -> TaskSource:
    data = tmp_path / "tasks.jsonl"
    data.write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    made = create_source("dataset", {"path": str(data), "validationTasks": 0, **options})
    made.reward_model = model
    return made


def classifier(logit: float) -> ScriptedModel:
    model = ScriptedModel([])
    model.answer = lambda body: httpx.Response(200, json={"data": [{"index": 0, "probs": [logit]}]})
    return model


async def score(source: TaskSource) -> float:
    return await compute_reward(TRIED, source.training(0), source, episode_name="episode 7")


async def test_a_score_is_the_logit_of_the_whole_conversation(tmp_path):
    model = classifier(-2.5)

    with served(model) as url:
        scored = source(tmp_path, announce(tmp_path / "servers.json", url), reward="reward_model")
        assert await score(scored) == -2.5

    (request,) = model.requests
    assert request["messages"] == [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "I add. 4"},
    ]
    assert request["use_activation"] is False
    assert request["model"] == NAME


async def test_a_server_that_is_away_is_passed_over(tmp_path):
    model = classifier(1.0)
    gone = f"http://127.0.0.1:{free_port()}/v1"

    with served(model) as url:
        scored = source(tmp_path, announce(tmp_path / "servers.json", gone, url), reward="reward_model")
        assert [await score(scored) for _ in range(4)] == [1.0] * 4

    assert len(model.requests) == 4


async def test_servers_that_start_again_elsewhere_are_found(tmp_path):
    file = tmp_path / "servers.json"
    model, moved = classifier(1.0), classifier(2.0)
    with served(model) as url:
        scored = source(tmp_path, announce(file, url), reward="reward_model")
        assert await score(scored) == 1.0

    with served(moved) as url:
        announce(file, url)
        assert await score(scored) == 2.0


async def test_servers_that_stay_away_give_no_reward(tmp_path):
    gone = f"http://127.0.0.1:{free_port()}/v1"
    scored = source(tmp_path, announce(tmp_path / "servers.json", gone), reward="reward_model")

    with pytest.raises(RewardError, match=r"no server of spec\.rewardModel could be reached"):
        await score(scored)


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(400, json={"error": {"message": "too long"}}),
        httpx.Response(200, json={"data": []}),
        httpx.Response(200, json={"data": [{"probs": []}]}),
        httpx.Response(200, json={"choices": []}),
    ],
    ids=["refused", "nothing", "no number", "of another kind"],
)
async def test_an_answer_without_a_score_is_no_reward(tmp_path, response):
    model = ScriptedModel([])
    model.answer = lambda body: response

    with served(model) as url:
        scored = source(tmp_path, announce(tmp_path / "servers.json", url), reward="reward_model")
        with pytest.raises(RewardError, match="gave no score"):
            await score(scored)


async def test_a_judge_without_an_address_asks_the_reward_model(tmp_path):
    model = ScriptedModel(["Right. Score: 5"])

    with served(model) as url:
        judged = source(tmp_path, announce(tmp_path / "servers.json", url), reward="judge")
        assert await score(judged) == 0.5

    (request,) = model.requests
    assert request["model"] == NAME
    assert "2 + 2?" in request["messages"][0]["content"]


async def test_rewards_without_servers_say_so(tmp_path):
    judged = source(tmp_path, RewardModel(tmp_path / "nowhere.json"), reward="judge")

    with pytest.raises(RewardError, match=r"no server of spec\.rewardModel is announced"):
        await score(judged)


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({"reward": "reward_model"}, True),
        ({"reward": "judge"}, True),
        ({"reward": "judge", "judge": {"url": "http://judge/v1", "model": "m"}}, False),
        ({"reward": "exact_match"}, False),
    ],
    ids=["score", "judge", "judge elsewhere", "function"],
)
def test_a_data_set_knows_whether_it_asks_the_reward_model(tmp_path, options, asks):
    assert source(tmp_path, None, **options).asks_reward_model is asks


@pytest.mark.parametrize(
    ("judge", "problem"),
    [
        ({"url": "http://judge/v1"}, "`url` and `model` belong together"),
        ({"model": "m"}, "`url` and `model` belong together"),
        ({"keyVariable": "KEY"}, "`keyVariable` is for a `url`"),
    ],
    ids=["no model", "no url", "a key"],
)
def test_half_an_address_of_a_judge_is_refused(tmp_path, judge, problem):
    with pytest.raises(SettingsError, match=problem):
        source(tmp_path, None, reward="judge", judge=judge)

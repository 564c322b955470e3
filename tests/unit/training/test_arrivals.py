"""Reports of ended prompts, from workers that are lists of what has ended."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from turnmill.rollout.worker import EndedPrompt, Replacement
from turnmill.training import arrivals
from turnmill.training.arrivals import Arrivals


class Worker:
    """A worker whose calls are ready once it has ended prompts that were not asked for, or is dead."""

    def __init__(self) -> None:
        self.ended: list[EndedPrompt] = []
        self.is_dead = False
        self.ended_prompts = self

    def remote(self, first: int) -> "Call":
        return Call(self, first)

    def end(self, *uids: str) -> None:
        self.ended += map(ended_prompt, uids)


class Call:
    """A call of a worker, in place of Ray's reference to its result."""

    def __init__(self, worker: Worker, first: int) -> None:
        self.worker, self.first = worker, first

    def is_ready(self) -> bool:
        return self.worker.is_dead or len(self.worker.ended) > self.first

    def result(self) -> list[EndedPrompt]:
        if self.worker.is_dead:
            raise RayActorError
        return self.worker.ended[self.first :]


class Manager:
    """A manager of two workers that keeps what it is told to forget."""

    def __init__(self) -> None:
        self.agent_loop_workers = [Worker(), Worker()]
        self.forgotten: list[EndedPrompt] = []

    def forget(self, ended: list[EndedPrompt]) -> None:
        self.forgotten += ended

    def replace_worker(self, index: int, error: Exception) -> Replacement:
        self.agent_loop_workers[index] = Worker()
        return Replacement(self.agent_loop_workers[index], [ended_prompt("unreported")])


def ended_prompt(uid: str) -> EndedPrompt:
    return EndedPrompt(uid, 1, validation=False)


def wait(calls: list[Call], *, num_returns: int, timeout: float) -> tuple[list[Call], list[Call]]:
    """Return at most so many calls that are ready, and the others, as Ray does."""
    ready = [call for call in calls if call.is_ready()][:num_returns]
    return ready, [call for call in calls if call not in ready]


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    monkeypatch.setattr(arrivals, "ray", SimpleNamespace(wait=wait, get=Call.result))
    return Manager()


def uids(found: Any) -> list[str]:
    return [ended.uid for ended in found.wait(0)]


def test_a_prompt_is_reported_once_by_whichever_worker_it_has_ended_in(manager):
    found, (first, second) = Arrivals(manager), manager.agent_loop_workers

    assert uids(found) == []
    first.end("a", "b")
    second.end("c")
    assert uids(found) == ["a", "b", "c"]
    assert uids(found) == []
    first.end("d", "e", "f")
    assert uids(found) == ["d", "e", "f"]
    first.end("g")
    assert uids(found) == ["g"]
    assert [ended.uid for ended in manager.forgotten] == ["a", "b", "c", "d", "e", "f", "g"]


def test_a_worker_that_takes_the_place_of_a_dead_one_is_asked_from_its_first_prompt(manager):
    found, (first, second) = Arrivals(manager), manager.agent_loop_workers
    first.end("a", "b")
    assert uids(found) == ["a", "b"]

    first.is_dead = True
    second.end("c")
    assert sorted(uids(found)) == ["c", "unreported"]

    manager.agent_loop_workers[0].end("d")
    assert uids(found) == ["d"]

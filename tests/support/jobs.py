"""Good jobs, and what breaks each of their rules."""

import copy
from typing import Any

JOB: dict[str, Any] = {
    "apiVersion": "turnmill.dev/v1alpha1",
    "kind": "AgentTrainingJob",
    "metadata": {"name": "small"},
    "spec": {
        "model": {"warmStart": {}},
        "agent": {"prompt": "compact"},
        "environment": {"name": "babyai"},
        "training": {"steps": 20, "turnsPerStep": 256},
    },
}


def job(base: dict[str, Any] = JOB, **changes: Any) -> dict[str, Any]:
    """A good job with changes such as `agent__maxTurns=3` below `spec`."""
    data = copy.deepcopy(base)
    for path, value in changes.items():
        *sections, name = path.split("__")
        node = data["spec"]
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return data


TOOL_JOB = JOB | {
    "spec": {
        "model": {"warmStart": {}},
        "agent": {"type": "tool", "stopTokens": ["</python>"]},
        "environment": {"name": "arithmetic"},
        "algorithm": {"type": "grpo"},
        "training": {"steps": 20, "tasksPerStep": 16},
    }
}


def tool_job(**changes: Any) -> dict[str, Any]:
    """A good job of an agent that calls tools, with changes like those of `job`."""
    return job(TOOL_JOB, **changes)


GRL_JOB = JOB | {
    "spec": {
        "model": {"path": "/models/Qwen2.5-0.5B-Instruct"},
        "agent": {
            "type": "grl",
            "agents": [
                {"name": "simple", "agentType": "sokobanAgent", "agentConfig": {"maxTurns": 6}},
                {"name": "large", "agentType": "sokobanAgent", "envConfig": {"dim_room": [8, 8]}},
            ],
            "training": ["simple"],
            "validation": ["simple", "large"],
        },
        "algorithm": {"type": "ppo"},
        "training": {"steps": 20},
    }
}


def grl_job(**changes: Any) -> dict[str, Any]:
    """A good job of GRL's agents, with changes like those of `job`."""
    return job(GRL_JOB, **changes)


RULE_VIOLATIONS: dict[str, dict[str, Any]] = {
    "both models": {"model": {"path": "/m", "warmStart": {}}},
    "no model": {"model": {}},
    "odd heads": {"model__warmStart__heads": 3},
    "cot for a tiny model": {"agent__prompt": "cot"},
    "thoughts without their turns": {"agent__memory": {"textTurns": 1, "thoughtTurns": 2}},
    "turns for some environments only": {"training__turnsPerStep": 250, "algorithm__minibatchTurns": 125},
    "a minibatch left over": {"algorithm__minibatchTurns": 100},
    "a process without turns": {"resources__train__gpusPerNode": 3},
    "more warm-up turns than gathered": {"algorithm__criticWarmup": {"batches": 1, "turnsPerStep": 257}},
    "engines beside those that learn": {"resources__rollout": {"replicas": 2}},
    "one device with two accelerators": {
        "resources": {"train": {"accelerator": "H100"}, "rollout": {"accelerator": "A40"}}
    },
    "retries without a checkpoint": {"retries": 1, "training__checkpointEvery": 20},
    "pictures of nothing": {"training__validation": {"episodes": 1, "renderEpisodes": 2}},
    "idle workers": {"resources__agentLoopWorkers": 33},
    "a queue for what runs already": {"queue": "team-a", "cluster": "shared"},
}

TOOL_RULE_VIOLATIONS: dict[str, dict[str, Any]] = {
    "turns for trajectories": {"training__turnsPerStep": 256},
    "no tasks": {"training__tasksPerStep": None},
    "tasks left over": {"algorithm__minibatchTasks": 5},
    "a group of one": {"agent__groupSize": 1},
    "turns that are no rows": {"algorithm": {"type": "gigpo"}},
    "a penalty longer than the response": {"algorithm": {"type": "dapo", "overlong": {"tokens": 1025}}},
    "more forced turns than turns": {"agent__minTurns": 2},
    "stop tokens twice": {"agent__actionStopTokens": "stop.txt"},
    "nothing that ends an action": {"agent__stopTokens": []},
    "pictures of trajectories": {"training__validation__renderEpisodes": 1},
    "idle workers": {"resources__agentLoopWorkers": 17},
}

GRL_RULE_VIOLATIONS: dict[str, dict[str, Any]] = {
    "two agents of one name": {"agent__agents": [{"name": "simple", "agentType": "a"}] * 2, "agent__validation": []},
    "two lists of those that learn": {"agent__train": ["simple"]},
    "a stranger that learns": {"agent__training": ["medium"]},
    "a stranger that learns, by the other name": {"agent__training": [], "agent__train": ["medium"]},
    "a stranger in validations": {"agent__validation": ["medium"]},
    "groups for more agents than learn": {"agent__agentGroupNum": [8, 8]},
    "sizes for more agents than learn": {"agent__agentGroupSize": [8, 8]},
    "groups for fewer agents than validate": {"agent__validationAgentGroupNum": [8, 8, 8]},
    "sizes for more agents than validate": {"agent__validationAgentGroupSize": [1, 1, 1]},
    "groups of one": {"agent__agentGroupSize": [1], "algorithm__type": "grpo"},
    "an environment for all": {"environment": {"name": "sokoban"}},
    "tasks of a step": {"training__tasksPerStep": 8},
    "pictures of chats": {"training__validation__renderEpisodes": 1},
}

"""Valid jobs, and for each rule a change that violates it."""

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
    """Return a valid job with changes such as `agent__maxTurns=3` below `spec`."""
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
    """Return a valid job of an agent that calls tools, with changes like those of `job`."""
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
    """Return a valid job of GRL's agents, with changes like those of `job`."""
    return job(GRL_JOB, **changes)


SFT_JOB = JOB | {
    "spec": {
        "model": {"path": "/models/Qwen2.5-0.5B-Instruct"},
        "algorithm": {"type": "sft", "data": "/data/conversations.jsonl"},
        "training": {"steps": 20},
    }
}


def sft_job(**changes: Any) -> dict[str, Any]:
    """Return a valid job that fine-tunes a model, with changes like those of `job`."""
    return job(SFT_JOB, **changes)


HARNESS_JOB = JOB | {
    "spec": {
        "model": {"warmStart": {}},
        "agent": {"type": "harness", "command": ["{python}", "/home/me/agent.py"]},
        "environment": {"name": "arithmetic"},
        "algorithm": {"type": "grpo"},
        "training": {"steps": 20, "tasksPerStep": 16},
    }
}


def harness_job(**changes: Any) -> dict[str, Any]:
    """Return a valid job of an agent that is a program, with changes like those of `job`."""
    return job(HARNESS_JOB, **changes)


RULE_VIOLATIONS: dict[str, dict[str, Any]] = {
    "two models": {"model": {"path": "/m", "warmStart": {}}},
    "no model": {"model": {}},
    "heads that do not divide the hidden size": {"model__warmStart__heads": 3},
    "the cot prompt for a warm start": {"agent__prompt": "cot"},
    "samples of environments": {"training__validation": {"samples": 2}},
    "more thought turns than text turns": {"agent__memory": {"textTurns": 1, "thoughtTurns": 2}},
    "turns not divisible by environments": {"training__turnsPerStep": 250, "algorithm__minibatchTurns": 125},
    "turns not divisible by the mini-batch": {"algorithm__minibatchTurns": 100},
    "a process without turns": {"resources__train__gpusPerNode": 3},
    "more warm-up turns than gathered": {"algorithm__criticWarmup": {"batches": 1, "turnsPerStep": 257}},
    "rollout machines without a separate mode": {"resources__rollout": {"replicas": 2}},
    "one device with two accelerators": {
        "resources": {"train": {"accelerator": "H100"}, "rollout": {"accelerator": "A40"}}
    },
    "retries without a checkpoint": {"retries": 1, "training__checkpointEvery": 20},
    "more rendered episodes than episodes": {"training__validation": {"episodes": 1, "renderEpisodes": 2}},
    "idle workers": {"resources__agentLoopWorkers": 33},
    "a correction of bypassed log-probs": {
        "algorithm__rolloutCorrection": {"bypass": True, "importanceSampling": "token"}
    },
    "rejection by bypassed log-probs": {"algorithm__rolloutCorrection": {"bypass": True, "rejection": "token"}},
    "a mask without weights inside": {"algorithm__rolloutCorrection": {"lowerThreshold": 3}},
    "a rejection of everything": {"algorithm__rolloutCorrection": {"rejectionLow": 2, "rejectionHigh": 1}},
    "a reward model beside an environment": {"rewardModel": {"path": "/m"}},
    "a queue for the shared cluster": {"queue": "team-a", "cluster": "shared"},
    "layers shared without megatron": {"resources__train": {"tensorParallel": 2, "gpusPerNode": 2}},
    "stages without megatron": {"resources__train": {"pipelineParallel": 2, "gpusPerNode": 2}},
    "rows shared without megatron": {"resources__train": {"contextParallel": 2, "gpusPerNode": 2}},
    "experts shared without megatron": {"resources__train": {"expertParallel": 2, "gpusPerNode": 2}},
    "rows shared by ulysses with megatron": {
        "resources__train": {"engine": "megatron", "sequenceParallel": 2, "gpusPerNode": 2}
    },
    "a part of a copy": {"resources__train": {"engine": "megatron", "tensorParallel": 4, "gpusPerNode": 2}},
    "adapters with megatron": {"model__lora": {}, "resources__train": {"engine": "megatron"}},
    "nothing to fine-tune on": {"model": {"warmStart": {}, "fineTune": {}}},
    "two things to fine-tune on": {"model": {"warmStart": {}, "fineTune": {"data": "/d.jsonl", "fromRun": "/runs/a"}}},
    "a process without rows of the fine-tuning": {
        "model": {"warmStart": {}, "fineTune": {"data": "/d.jsonl", "batchSize": 3}},
        "resources__train__gpusPerNode": 2,
    },
    "fine-tuning with megatron": {
        "model": {"path": "/m", "fineTune": {"data": "/d.jsonl"}},
        "resources__train__engine": "megatron",
    },
    "megatron on a cpu": {"resources": {"device": "cpu", "train": {"engine": "megatron"}}},
}

TOOL_RULE_VIOLATIONS: dict[str, dict[str, Any]] = {
    "turns per step of a tool agent": {"training__turnsPerStep": 256},
    "no tasks": {"training__tasksPerStep": None},
    "tasks not divisible by the mini-batch": {"algorithm__minibatchTasks": 5},
    "a group of one": {"agent__groupSize": 1},
    "gigpo without a row per turn": {"algorithm": {"type": "gigpo"}},
    "neither steps nor validations": {"training__steps": 0, "training__validation": {"episodes": 0}},
    "an adaptive penalty in the loss": {"algorithm__kl": {"in": "loss", "type": "adaptive"}},
    "a penalty longer than the response": {"algorithm": {"type": "dapo", "overlong": {"tokens": 1025}}},
    "more forced turns than turns": {"agent__minTurns": 2},
    "two settings of stop tokens": {"agent__actionStopTokens": "stop.txt"},
    "no stop tokens": {"agent__stopTokens": []},
    "rendered episodes of a tool agent": {"training__validation__renderEpisodes": 1},
    "idle workers": {"resources__agentLoopWorkers": 17},
    "a correction without log-probs": {
        "agent__logprobs": False,
        "algorithm__rolloutCorrection": {"importanceSampling": "sequence"},
    },
}

GRL_RULE_VIOLATIONS: dict[str, dict[str, Any]] = {
    "two agents of one name": {"agent__agents": [{"name": "simple", "agentType": "a"}] * 2, "agent__validation": []},
    "two lists of training agents": {"agent__train": ["simple"]},
    "an unknown agent in training": {"agent__training": ["medium"]},
    "an unknown agent in train": {"agent__training": [], "agent__train": ["medium"]},
    "an unknown agent in validation": {"agent__validation": ["medium"]},
    "more numbers of groups than training agents": {"agent__agentGroupNum": [8, 8]},
    "more sizes of groups than training agents": {"agent__agentGroupSize": [8, 8]},
    "more numbers of groups than validation agents": {"agent__validationAgentGroupNum": [8, 8, 8]},
    "more sizes of groups than validation agents": {"agent__validationAgentGroupSize": [1, 1, 1]},
    "groups of one": {"agent__agentGroupSize": [1], "algorithm__type": "grpo"},
    "an environment beside the agents": {"environment": {"name": "sokoban"}},
    "tasks per step of grl agents": {"training__tasksPerStep": 8},
    "rendered episodes of grl agents": {"training__validation__renderEpisodes": 1},
}

HARNESS_RULE_VIOLATIONS: dict[str, dict[str, Any]] = {
    "no program": {"agent": {"type": "harness"}},
    "a program and a service": {"agent__url": "http://agent:8000/play"},
    "a function and a program": {"agent__entryPoint": "agents.coder:play"},
    "an interpreter for a program": {"agent__python": "/opt/agent/bin/python"},
    "an import of a program": {"agent__preload": True},
    "one import for many sandboxes": {
        "agent": {"type": "harness", "entryPoint": "agents.coder:play", "preload": True, "sandbox": {}}
    },
    "a sandbox for a service": {"agent": {"type": "harness", "url": "http://agent:8000/play", "sandbox": {}}},
    "a program for an environment that plays itself": {"environment": {"name": "verifiers", "task": "glossary"}},
}

SFT_RULE_VIOLATIONS: dict[str, dict[str, Any]] = {
    "no data": {"algorithm": {"type": "sft"}},
    "data and a run": {"algorithm__fromRun": "/runs/babyai"},
    "a process without rows": {"algorithm__batchSize": 3, "resources__train__gpusPerNode": 2},
    "a mode with rollout": {"training__mode": "colocate_async"},
    "neither steps nor validation data": {"training__steps": 0},
    "fine-tuning before fine-tuning": {"model__fineTune": {"data": "/data/conversations.jsonl"}},
    "an environment": {"environment": {"name": "babyai"}},
    "tasks per step of sft": {"training__tasksPerStep": 8},
    "turns per step of sft": {"training__turnsPerStep": 64},
    "sft with megatron": {"resources__train__engine": "megatron"},
}

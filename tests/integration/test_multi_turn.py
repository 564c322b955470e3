"""verl's multi-turn rollout with verl's own worker, loops and tools, and a scripted policy."""

import json
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import transfer_queue
from aiohttp import web
from verl.tools import function_tool
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from support import verl_loops
from support.loopback_site import LoopbackSite
from support.verl_tools import FUNCTIONS_FILE, SCALES_FILE, Scales
from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.multi_turn.example_tools.search import MAX_QUERIES
from turnmill.rollout.multi_turn.loop import MAX_CHARACTERS
from turnmill.rollout.multi_turn.verl_classes import ContinuousTokenBuilder
from turnmill.rollout.multi_turn.worker import MultiTurnManager, MultiTurnWorker, manager_class
from turnmill.rollout.token_integrity import count_unsampled_tokens
from turnmill.testing.agent_loops import END, TOKENIZER
from turnmill.testing.conversations import FORGETS, THINKS, ConversationHarness, conversation_job, summary_of
from turnmill.testing.policies import LOG_PROB
from turnmill.training.agent_kinds import agent_kind
from turnmill.training.agent_kinds.multi_turn import existing_file

TASK = {"prompt": [{"role": "user", "content": "Weigh it."}], "data_source": "trial"}
DONE = f"It is done{END}"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


VERLS_WORKER = AgentLoopWorkerTQ.__ray_metadata__.modified_class
Make = Callable[..., ConversationHarness]


@pytest.fixture
def new_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    # verl loads a file of functions once per process.
    monkeypatch.setattr(function_tool, "FUNCTION_TOOL_REGISTRY", {})
    monkeypatch.setattr(function_tool, "_LOADED_FUNCTION_TOOL_PATHS", {})
    monkeypatch.setattr(Scales, "calls", [])
    (tmp_path / "tools.yaml").write_text(SCALES_FILE)
    (tmp_path / "functions.py").write_text(FUNCTIONS_FILE)

    def make(
        script: Any, *tasks: dict[str, Any], template: str | None = None, reward: str | None = None,
        validation_samples: int = 0, verl: dict[str, Any] | None = None, **agent: Any,
    ) -> ConversationHarness:  # fmt: skip
        rows = [TASK | task for task in tasks or ({},)]
        (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths = {name: str(tmp_path / agent.get(name, file)) for name, file in PATHS.items()}
        job = conversation_job(tmp_path / "tasks.jsonl", reward=reward, validation_samples=validation_samples,
                               verl=verl, **(agent | paths))  # fmt: skip
        return ConversationHarness(tmp_path, script, job, **({"template": template} if template else {}))

    return make


PATHS = {"toolConfigPath": "tools.yaml", "functionToolPath": "functions.py"}


def trained_text(harness: ConversationHarness, row: Any) -> str:
    """Return the text of the tokens in the response mask."""
    return harness.tokenizer.decode([t for t, mask in zip(row.response_ids, row.response_mask, strict=True) if mask])


def text(harness: ConversationHarness, row: Any) -> str:
    return harness.tokenizer.decode(row.response_ids)


# ---- tools ----


@pytest.mark.feature("verl's multi-turn", "file of tools")
async def test_tools_of_a_yaml_file_are_created_with_their_settings_and_listed_in_the_prompt(new_harness: Make):
    harness = new_harness([call("weigh", weight=3) + END, DONE])

    await harness.play()

    assert harness.prompts[0].startswith("<|im_start|>system\nTools: weigh")
    # The unit is set in `config`.
    assert "<tool_response>\n3 lb\n</tool_response>" in harness.prompts[1]


@pytest.mark.feature("verl's multi-turn", "filtering of overlong prompts")
async def test_overlong_prompts_are_left_out_with_the_schemas_of_their_tools(new_harness: Make):
    def task(text: str, **extra: Any) -> dict[str, Any]:
        return {"prompt": [{"role": "user", "content": text}], "extra_info": extra}

    # Of one length without schemas; a character is a token, and the schemas of all tools take 20 more than that of one.
    tasks = [task("a" * 40), task("b" * 10), task("c" * 40, tool_selection=["weigh"]), task("d" * 90)]
    limits = {"maxPromptLength": 130, "maxResponseLength": 200, "filterOverlongPrompts": True}
    harness = new_harness(lambda _: DONE, *tasks, **limits)

    for number in range(8):
        await harness.play(task=0, step=number + 1)

    asked = {prompt.split("user\n")[1][0] for prompt in harness.prompts}
    assert asked == {"b", "c"}


@pytest.mark.feature("verl's multi-turn", "filtering of overlong prompts")
async def test_without_filtering_overlong_prompts_lose_their_beginning(new_harness: Make):
    harness = new_harness([DONE], {"prompt": [{"role": "user", "content": "d" * 90}]}, maxPromptLength=60)

    await harness.play()

    assert len(harness.prompts[0]) < 90


@pytest.mark.parametrize(("length", "in_thread"), [(100, False), (MAX_CHARACTERS, False), (MAX_CHARACTERS + 1, True)])
async def test_a_long_prompt_is_tokenized_in_a_thread(
    new_harness: Make, monkeypatch: pytest.MonkeyPatch, length: int, in_thread: bool
):
    threads = []

    def build(builder: Any, *args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread())
        return whole(builder, *args, **kwargs)

    whole = ContinuousTokenBuilder.build_initial_tokens
    monkeypatch.setattr(ContinuousTokenBuilder, "build_initial_tokens", build)
    task = {"prompt": [{"role": "user", "content": "d" * length}]}
    harness = new_harness([DONE], task, maxPromptLength=MAX_CHARACTERS + 500)

    await harness.play()

    assert [thread is not threading.current_thread() for thread in threads] == [in_thread]
    assert "d" * length in harness.prompts[0]


@pytest.mark.feature("verl's multi-turn", "filtering of overlong prompts")
@pytest.mark.parametrize("settings", [{"style": "s" * 60}, None])
async def test_the_settings_of_the_chat_template_count_for_the_length_of_a_prompt(
    new_harness: Make, settings: dict[str, str] | None
):
    tasks = [{"prompt": [{"role": "user", "content": letter * length}]} for letter, length in (("a", 90), ("b", 10))]
    limits = {"maxPromptLength": 190, "maxResponseLength": 200, "filterOverlongPrompts": True}
    harness = new_harness(lambda _: DONE, *tasks, template=THINKS + "{{- style or '' }}", **limits,
                          verl={"data.apply_chat_template_kwargs": settings})  # fmt: skip

    for number in range(4):
        await harness.play(task=0, step=number + 1)

    asked = {prompt.split("user\n")[1][0] for prompt in harness.prompts}
    assert asked == ({"b"} if settings else {"a", "b"})


async def test_a_data_set_of_overlong_prompts_only_is_refused(new_harness: Make):
    with pytest.raises(
        SettingsError, match=r"filterOverlongPrompts: all prompts of .*tasks\.jsonl are too long\. Raise"
    ):
        new_harness([DONE], maxPromptLength=16, filterOverlongPrompts=True)


@pytest.mark.feature("verl's multi-turn", "life cycle of a tool")
async def test_a_tool_is_created_executed_and_released_once_for_every_call(new_harness: Make):
    await new_harness([call("weigh", weight=3) + END, call("weigh", weight=4) + END, DONE]).play()

    once = ["create lb", "execute {'weight': %d}", "release lb"]
    assert Scales.calls == [note.replace("%d", weight) for weight in "34" for note in once]


@pytest.mark.feature("verl's multi-turn", "life cycle of a tool")
async def test_a_tool_that_raises_is_released(new_harness: Make):
    await new_harness([call("weigh", weight=-1) + END, DONE]).play()

    assert Scales.calls == ["create lb", "execute {'weight': -1}", "release lb"]


@pytest.mark.feature("verl's multi-turn", "settings from the data")
async def test_a_tool_is_created_with_the_settings_of_the_data_row(new_harness: Make):
    kwargs = {"weigh": {"create_kwargs": {"unit": "stone", "gap": None}}, "shout": None}
    harness = new_harness([call("weigh", weight=3) + END, DONE], {"extra_info": {"tools_kwargs": kwargs}})

    await harness.play()

    assert Scales.calls[0] == "create stone"
    assert "3 stone" in harness.prompts[1]


@pytest.mark.feature("verl's multi-turn", "functions as tools")
async def test_sync_and_async_functions_are_tools_with_or_without_a_given_name(new_harness: Make):
    harness = new_harness([call("shout", text="hey") + END, call("later", text="bye") + END, DONE])

    (row,) = await harness.play()

    assert '<tool_response>\n{"text": "HEY"}\n</tool_response>' in harness.prompts[1]
    assert "<tool_response>\nbye\n</tool_response>" in harness.prompts[2]
    metrics = summary_of(row).metrics
    assert (metrics["tool_avg_loud"], metrics["num_tool_calls"], metrics["tool_call_success"]) == (1, 2, 1)


@pytest.mark.parametrize(("weights", "mean"), [([3, 3], 0.5), ([3, 101], 0.5), ([101], None)])
async def test_the_rewards_of_tools_are_measured_where_they_give_some(
    new_harness: Make, weights: list[int], mean: float | None
):
    harness = new_harness([*(call("weigh", weight=weight) + END for weight in weights), DONE])

    (row,) = await harness.play()

    assert summary_of(row).metrics.get("per_reward_from_tool") == mean


@pytest.mark.feature("verl's multi-turn", "name collisions")
def test_two_tools_of_one_name_are_refused(new_harness: Make, tmp_path: Path):
    (tmp_path / "colliding.py").write_text(FUNCTIONS_FILE.replace('"later"', '"weigh"'))

    with pytest.raises(ValueError, match=r"Function tool name\(s\) \['weigh'\] collide"):
        new_harness([], functionToolPath="colliding.py")


@pytest.mark.feature("verl's multi-turn", "limit on parallel calls")
async def test_calls_beyond_the_limit_of_a_response_are_dropped(new_harness: Make):
    response = "".join(call("later", text=word) for word in ("one", "two", "three")) + END
    harness = new_harness([response, DONE], maxParallelCalls=2)

    (row,) = await harness.play()

    assert harness.prompts[1].count("<tool_response>") == 2
    assert "two" in harness.prompts[1].rpartition("<tool_response>")[2]
    assert summary_of(row).metrics["num_tool_calls"] == 2


@pytest.mark.feature("verl's multi-turn", "truncation of long tool responses")
@pytest.mark.parametrize(
    ("side", "shown"),
    [("left", "(truncated)...6789"), ("right", "0123...(truncated)"), ("middle", "01...(truncated)...89")],
)
async def test_long_texts_of_tools_are_cut_in_characters(new_harness: Make, side: str, shown: str):
    response = call("later", text="0123456789") + END
    harness = new_harness([response, DONE], maxToolResponseLength=4, toolResponseTruncateSide=side)

    await harness.play()

    assert f"<tool_response>\n{shown}\n</tool_response>" in harness.prompts[1]


@pytest.mark.feature("verl's multi-turn", "tools of a task")
async def test_a_task_may_choose_among_the_tools(new_harness: Make):
    harness = new_harness(
        [call("weigh", weight=1) + END, DONE], {"extra_info": {"tool_selection": ["shout", "nothing"]}}
    )

    await harness.play()

    assert harness.prompts[0].startswith("<|im_start|>system\nTools: shout<|im_end|>")
    assert "Unknown function 'weigh'. Available tools: ['shout']" in harness.prompts[1]


@pytest.mark.feature("verl's multi-turn", "error texts")
@pytest.mark.parametrize(
    ("response", "observation"),
    [
        (call("fly"), "Unknown function 'fly'. Available tools: ['weigh', 'four', 'later', 'shout']"),
        (call("weigh", weight=-1), "Error executing tool 'weigh': too light"),
        (call("four"), "Error executing tool 'four': @function_tool return tuple must have length 1, 2, or 3"),
        (call("shout", loud=1), "Error executing tool 'shout': "),
    ],
)
async def test_errors_of_calls_and_of_tools_are_observations(new_harness: Make, response: str, observation: str):
    harness = new_harness([response + END, DONE], maxToolResponseLength=10_000)

    (row,) = await harness.play()

    assert f"<tool_response>\n{observation}" in harness.prompts[1]
    assert row.extra_fields["tool_rewards"] == [0.0]


@pytest.mark.feature("verl's multi-turn", "error texts")
async def test_arguments_that_are_not_json_are_an_observation(new_harness: Make):
    response = "<|start|>assistant<|channel|>commentary to=functions.weigh <|constrain|>json<|message|>{oops<|call|>"
    harness = new_harness([response, DONE], format="gpt-oss")

    (row,) = await harness.play()

    assert "Invalid JSON in arguments for 'weigh': " in harness.prompts[1]
    assert row.extra_fields["tool_rewards"] == [0.0]


# ---- limits ----


@pytest.mark.feature("verl's multi-turn", "limits on turns")
@pytest.mark.parametrize(
    ("limit", "num_responses", "detail"),
    [
        ({"maxAssistantTurns": 2}, 2, "max_assistant_turns"),
        ({"maxUserTurns": 2}, 3, "max_user_turns"),
    ],
)
async def test_a_trajectory_ends_at_its_limit_of_turns(new_harness: Make, limit: Any, num_responses: int, detail: str):
    harness = new_harness(lambda _: call("later", text="on") + END, **limit)

    (row,) = await harness.play()

    assert len(harness.policy.requests) == num_responses
    assert summary_of(row).stop_reason == "max_turns"
    assert harness.logged()[-1].stop_detail == detail


async def test_a_trajectory_ends_when_an_observation_exceeds_the_response_length(new_harness: Make):
    response = call("later", text="x" * 100) + END
    harness = new_harness([response], maxResponseLength=200)

    (row,) = await harness.play()

    assert text(harness, row) == response
    assert summary_of(row).stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("response", "end"),
    [
        ("0123456789", ("max_tokens", "max_response_length")),
        (f"012345678{END}", ("completed", "no tool call")),
    ],
)
async def test_a_response_at_the_length_limit_is_cut_off_unless_it_ends_with_the_end_token(
    new_harness: Make, response: str, end: Any
):
    harness = new_harness([response], maxResponseLength=10)

    (row,) = await harness.play()

    assert text(harness, row) == response
    assert (summary_of(row).stop_reason, harness.logged()[-1].stop_detail) == end


async def test_a_call_at_the_length_limit_ends_the_trajectory_and_is_not_made(new_harness: Make):
    response = call("weigh", weight=3) + END
    harness = new_harness([response], maxResponseLength=len(TOKENIZER.encode(response, add_special_tokens=False)))

    (row,) = await harness.play()

    assert (summary_of(row).stop_reason, harness.logged()[-1].stop_detail) == ("max_tokens", "max_response_length")
    assert Scales.calls == []


# ---- tokens ----


@pytest.mark.feature("verl's multi-turn", "masks")
async def test_the_response_mask_has_only_sampled_tokens_and_the_policy_read_the_same_tokens(new_harness: Make):
    response = "Let me see. " + call("weigh", weight=3) + END
    harness = new_harness([response, DONE])

    (row,) = await harness.play()

    between = "\n<|im_start|>user\n<tool_response>\n3 lb\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert text(harness, row) == response + between + DONE
    assert trained_text(harness, row) == response + DONE
    assert [LOG_PROB * mask for mask in row.response_mask] == row.response_logprobs
    second = harness.policy.requests[1]
    assert list(second.prompt_ids) == (row.prompt_ids + row.response_ids)[: len(second.prompt_ids)]
    assert count_unsampled_tokens([(row.response_ids, row.response_mask)], summary_of(row).sampled_tokens) == 0


@pytest.mark.feature("verl's multi-turn", "tokens of the last turn")
async def test_the_last_turn_has_the_tokens_of_the_whole_template(new_harness: Make):
    """A tool's turn is tokenized after a fixed history, so that reasoning that the template drops has no effect."""
    task = {
        "prompt": [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "<think>polite</think>Hello!"},
            {"role": "user", "content": "Weigh it."},
        ]
    }
    response = "<think>scales</think>" + call("weigh", weight=3)
    harness = new_harness([response + END, DONE], task)

    await harness.play()

    tools = [tool.tool_schema.model_dump(exclude_none=True) for tool in harness.worker.tools]
    called = {"name": "weigh", "arguments": {"weight": 3}}
    messages = [
        *task["prompt"],
        {"role": "assistant", "content": "<think>scales</think>", "tool_calls": [{"function": called}]},
        {"role": "tool", "content": "3 lb"},
    ]
    whole = harness.tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(harness.policy.requests[1].prompt_ids) == whole
    assert "polite" not in harness.prompts[1]


@pytest.mark.feature("verl's multi-turn", "sanity check")
@pytest.mark.parametrize(
    ("mode", "response", "warns"),
    [
        ("strict", call("weigh", weight=3), False),
        ("strict", call("weigh", weight=3).replace(": ", ":"), True),
        ("ignore_strippable", call("weigh", weight=3).replace(": ", ":"), False),
        ("ignore_strippable", "Hm. " + call("weigh", weight=3) + "!", True),
        ("disable", "Hm. " + call("weigh", weight=3) + "!", False),
    ],
)
async def test_tokens_that_differ_from_the_template_log_a_warning(
    new_harness: Make, caplog: pytest.LogCaptureFixture, mode: str, response: str, warns: bool
):
    harness = new_harness([response + END, DONE], tokenizationSanityCheckMode=mode)

    with caplog.at_level(logging.WARNING, logger="turnmill"):
        (row,) = await harness.play()

    expected = f"Inconsistent training and inference tokenization detected ({mode})"
    assert [record for record in caplog.messages if record.startswith(expected)] == caplog.messages[: int(warns)]
    assert summary_of(row).metrics.get("tokenization_differences", 0) == warns
    assert trained_text(harness, row) == response + END + DONE


@pytest.mark.feature("verl's multi-turn", "the inference template")
async def test_the_policy_can_read_and_learn_from_the_template_of_inference(new_harness: Make):
    response = "<think>scales</think>Now." + call("weigh", weight=3)
    answer = "<think>fine</think>It is done"
    harness = new_harness([response + END, answer + END], template=FORGETS, useInferenceChatTemplate=True)

    first, second = await harness.play()

    assert "scales" not in harness.prompts[1]
    assert "Now." in harness.prompts[1]
    assert (trained_text(harness, first), trained_text(harness, second)) == (response + END, answer + END)
    assert harness.tokenizer.decode(second.prompt_ids) == harness.prompts[1]
    one, other = harness.logged()
    assert (one.prompt_ids, one.observation) == (tuple(first.prompt_ids), harness.prompts[1])
    assert not other.prompt_ids
    rows = [(row.response_ids, row.response_mask) for row in (first, second)]
    assert count_unsampled_tokens(rows, summary_of(second).sampled_tokens) == 0


async def test_sampled_responses_are_kept_when_the_retokenized_context_leaves_no_room(new_harness: Make):
    response = "<think>scales</think>Now." + call("weigh", weight=3)
    # A token is a character: two turns fill it.
    harness = new_harness([response + END] * 9, template=FORGETS, useInferenceChatTemplate=True, maxResponseLength=200,
                          tokenizationSanityCheckMode="disable", maxAssistantTurns=9)  # fmt: skip

    rows = await harness.play()

    assert harness.logged()[-1].stop_detail == "no room for a response"
    assert all(0 < len(row.response_ids) == len(row.response_mask) and any(row.response_mask) for row in rows)
    assert "".join(trained_text(harness, row) for row in rows).startswith(response + END)


@pytest.mark.feature("verl's multi-turn", "the inference template")
async def test_without_the_template_of_inference_the_policy_reads_its_earlier_reasoning(new_harness: Make):
    response = "<think>scales</think>Now." + call("weigh", weight=3)
    harness = new_harness([response + END, DONE], template=FORGETS, tokenizationSanityCheckMode="disable")

    (row,) = await harness.play()

    assert "<think>scales</think>" in harness.prompts[1]
    assert trained_text(harness, row) == response + END + DONE


# ---- agents ----


OWN_LOOPS = """
- {name: twice, _target_: support.verl_loops.TwoResponses, word: again}
- {name: breaks, _target_: support.verl_loops.FailingLoop}
"""


@pytest.mark.feature("verl's multi-turn", "a loop for each task")
async def test_tasks_of_one_batch_may_have_different_loops(new_harness: Make):
    harness = new_harness(lambda _: call("weigh", weight=3) + END, {"agent_name": "single_turn_agent"}, {},
                          maxAssistantTurns=3)  # fmt: skip

    turns = sorted([(await harness.play(task=task))[0].num_turns for task in range(2)])

    # verl counts messages: a prompt and a response, or three responses with observations between them.
    assert turns == [2, 6]


async def test_the_default_loop_is_that_of_the_job(new_harness: Make):
    harness = new_harness([call("weigh", weight=3) + END], defaultAgentLoop="single_turn_agent")

    (row,) = await harness.play()

    assert "Tools:" not in harness.prompts[0]
    assert len(harness.policy.requests) == summary_of(row).metrics["num_turns"] == 1


@pytest.mark.feature("verl's multi-turn", "user-defined loops and managers")
@pytest.mark.feature("verl's multi-turn", "several outputs of a trajectory")
async def test_user_defined_loops_come_from_a_file_and_may_return_several_outputs(new_harness: Make, tmp_path: Path):
    (tmp_path / "loops.yaml").write_text(OWN_LOOPS)
    harness = new_harness(["one" + END, "two" + END], agentLoopConfigPath=str(tmp_path / "loops.yaml"),
                          defaultAgentLoop="twice")  # fmt: skip

    first, last = await harness.play()

    assert (text(harness, first), text(harness, last)) == ("one" + END, "two" + END)
    # The loop sets the reward of its last output; all rows of a trajectory have it.
    assert (first.reward_score, last.reward_score) == (0.25, 0.25)
    assert last.extra_fields["reward_extra_info"] == {"pred": "again"}


async def test_a_loop_with_a_reward_that_is_not_finite_fails_the_trajectory(
    new_harness: Make, tmp_path: Path, monkeypatch: Any
):
    (tmp_path / "loops.yaml").write_text(OWN_LOOPS)
    monkeypatch.setattr(verl_loops.TwoResponses, "reward", math.nan)
    harness = new_harness(lambda _: DONE, agentLoopConfigPath=str(tmp_path / "loops.yaml"), defaultAgentLoop="twice")

    failure = await harness.play()

    assert (type(failure), failure.cause) == (EpisodeFailure, "reward")


async def test_a_loop_that_raises_fails_only_its_own_trajectory(new_harness: Make, tmp_path: Path):
    (tmp_path / "loops.yaml").write_text(OWN_LOOPS)
    tasks = ({"agent_name": "breaks"}, {"agent_name": "single_turn_agent"})
    harness = new_harness(lambda _: DONE, *tasks, agentLoopConfigPath=str(tmp_path / "loops.yaml"))

    outcomes = [await harness.play(task=task) for task in range(2)]

    (failure,) = (outcome for outcome in outcomes if isinstance(outcome, EpisodeFailure))
    assert failure.cause == "agent_loop"
    assert "'breaks' broke: ZeroDivisionError" in failure.message
    assert len([outcome for outcome in outcomes if isinstance(outcome, list)]) == 1


async def test_an_unknown_loop_is_a_settings_error(new_harness: Make):
    with pytest.raises(SettingsError, match=r"there is no agent loop 'tool_agnt'. Did you mean 'tool_agent'\?"):
        await new_harness([DONE], defaultAgentLoop="tool_agnt").play()


# ---- failures of tools ----


@pytest.mark.parametrize(("failure", "num_asked"), [("fail", 1), ("text", 2)])
async def test_a_tool_that_cannot_connect_fails_the_trajectory_or_is_an_observation_as_set(
    new_harness: Make, failure: str, num_asked: int
):
    harness = new_harness([call("weigh", weight=0) + END, DONE], onToolFailure=failure)

    outcome = await harness.play()

    assert len(harness.policy.requests) == num_asked
    if failure == "fail":
        assert isinstance(outcome, EpisodeFailure)
        assert outcome.cause == "tool_connection"
        assert harness.logged()[-1].failed_cause == "tool_connection"
    else:
        assert "Error executing tool 'weigh': the scales are unavailable" in harness.prompts[1]


async def test_a_tool_that_never_answers_fails_the_trajectory(new_harness: Make, tmp_path: Path):
    hanging = FUNCTIONS_FILE.replace("    return text\n", "    import asyncio\n\n    await asyncio.Event().wait()\n")
    (tmp_path / "hanging.py").write_text(hanging)
    harness = new_harness([call("later", text="x") + END], functionToolPath="hanging.py", toolCallTimeout=0.2)

    outcome = await harness.play()

    assert isinstance(outcome, EpisodeFailure)
    assert outcome.cause == "tool_timeout"


# ---- managers ----


@pytest.mark.feature("verl's multi-turn", "user-defined loops and managers")
@pytest.mark.parametrize("name", ["support.verl_loops.ReversingManager", "support.verl_loops.ReversingVerlManager"])
def test_a_user_defined_manager_is_found_by_its_import_path(name: str):
    manager = manager_class(name)

    assert issubclass(manager, MultiTurnManager)
    assert manager.generate_sequences is getattr(verl_loops, name.rpartition(".")[2]).generate_sequences
    assert manager.worker_class is MultiTurnWorker


def test_verl_is_told_that_there_are_turns_and_how_long_rows_are(tmp_path: Path):
    job = conversation_job(tmp_path / "tasks.jsonl", maxPromptLength=300, maxResponseLength=100)

    settings = agent_kind(job.spec.agent).verl_settings(job)

    rollout = "actor_rollout_ref.rollout"
    assert (settings[f"{rollout}.multi_turn.enable"], settings[f"{rollout}.max_model_len"]) == (True, 400)


@pytest.mark.feature("verl's multi-turn", "user-defined loops and managers")
@pytest.mark.parametrize(
    ("chosen", "manager"),
    [({"agentLoopManagerClass": "support.verl_loops.ReversingManager"}, verl_loops.ReversingManager),
     ({}, MultiTurnManager)],
)  # fmt: skip
def test_the_job_selects_the_manager_class(tmp_path: Path, chosen: dict[str, str], manager: type):
    job = conversation_job(tmp_path / "tasks.jsonl", **chosen)
    kind = agent_kind(job.spec.agent)

    assert kind.manager_class(job) is manager
    path = kind.verl_settings(job)["actor_rollout_ref.rollout.agent.agent_loop_manager_class"]
    assert path == f"{manager.__module__}.{manager.__name__}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("support.verl_loops.TwoResponses", "is no manager of verl's"),
        ("support.verl_loops.Missing", "names no class"),
    ],
)
def test_an_import_path_without_a_manager_is_a_settings_error(name: str, message: str):
    with pytest.raises(SettingsError, match=message):
        manager_class(name)


@pytest.mark.feature("verl's multi-turn", "several outputs of a trajectory")
async def test_every_output_of_a_trajectory_is_a_row_in_the_queue(
    new_harness: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "loops.yaml").write_text(OWN_LOOPS)
    harness = new_harness(["one" + END, "two" + END], agentLoopConfigPath=str(tmp_path / "loops.yaml"),
                          defaultAgentLoop="twice")  # fmt: skip
    put: list[dict[str, Any]] = []

    async def keep(**given: Any) -> None:
        put.append(given)

    monkeypatch.setattr(transfer_queue, "async_kv_batch_put", keep)
    rows = await harness.play(sample=3)
    given = {"uid": "task0", "session_id": 3, "index": 0, "global_steps": 1, "raw_prompt": []}
    await VERLS_WORKER._agent_loop_postprocess(harness.worker, rows, False, **given)

    ((keys, tags),) = ((each["keys"], each["tags"]) for each in put)
    assert keys == ["task0_3_0", "task0_3_1"]
    assert [tag["status"] for tag in tags] == ["success", "success"]


# ---- rewards ----


@pytest.mark.parametrize(
    ("samples", "loop", "vote"),
    [(2, "tool_agent", "It is done"), (2, "twice", "again"), (1, "tool_agent", None), (1, "twice", None)],
)
async def test_a_sample_of_a_validation_votes_as_its_loop_says_or_as_its_reward_reads_it(
    new_harness: Make, tmp_path: Path, samples: int, loop: str, vote: str | None
):
    (tmp_path / "loops.yaml").write_text(OWN_LOOPS)
    harness = new_harness([DONE, DONE], {}, {}, reward="exact_match", validation_samples=samples,
                          agentLoopConfigPath=str(tmp_path / "loops.yaml"), defaultAgentLoop=loop)  # fmt: skip

    rows = await harness.play(validate=True)

    assert [summary_of(row).prediction for row in rows] == [vote] * len(rows)


async def test_verls_reward_is_selected_by_the_data_source(new_harness: Make):
    task = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "42"}}
    response = call("weigh", weight=3) + END
    harness = new_harness([response, f"#### 42{END}", response, f"#### 41{END}"], task, reward="verl")

    rewards = [(await harness.play(sample=sample))[0].reward_score for sample in range(2)]

    assert rewards == [1.0, 0.0]


async def test_a_reward_function_for_verl_is_loaded_from_a_file(new_harness: Make, tmp_path: Path):
    (tmp_path / "reward.py").write_text(
        "def worth(data_source, solution_str, ground_truth, extra_info):\n"
        '    return {"score": len(solution_str) if data_source == "trial" else -1}\n'
    )
    harness = new_harness([DONE], reward=f"verl:{tmp_path / 'reward.py'}:worth", defaultAgentLoop="single_turn_agent")

    (row,) = await harness.play()

    assert row.reward_score == len("It is done")


async def test_a_reward_that_is_not_finite_fails_the_trajectory(new_harness: Make, tmp_path: Path):
    (tmp_path / "reward.py").write_text('def worth(**given):\n    return float("nan")\n')
    harness = new_harness([DONE], reward=f"verl:{tmp_path / 'reward.py'}:worth", defaultAgentLoop="single_turn_agent")

    failure = await harness.play()

    assert (type(failure), failure.cause) == (EpisodeFailure, "reward")


# ---- files ----


def test_files_can_be_in_a_package():
    path = "pkg://turnmill/rollout/multi_turn/example_tools/gsm8k.yaml"

    found = existing_file("toolConfigPath", path)

    assert found is not None
    assert "calc_gsm8k_reward" in Path(found).read_text()


@pytest.mark.parametrize("path", ["/nowhere/tools.yaml", "pkg://turnmill/nowhere.yaml", "pkg://no_such_package/a.yaml"])
def test_a_missing_file_is_a_settings_error(path: str):
    with pytest.raises(SettingsError, match=r"spec.agent.toolConfigPath: .* (is not a file|there is no package)"):
        existing_file("toolConfigPath", path)


async def test_the_tool_of_verls_recipe_rewards_right_answers(new_harness: Make):
    kwargs = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "42"}}}
    response = call("calc_gsm8k_reward", answer="41") + call("calc_gsm8k_reward", answer="42") + END
    recipe = existing_file("toolConfigPath", "pkg://turnmill/rollout/multi_turn/example_tools/gsm8k.yaml")
    harness = new_harness(
        [response, DONE], {"extra_info": {"tools_kwargs": kwargs}}, toolConfigPath=recipe, maxParallelCalls=2
    )

    (row,) = await harness.play()

    assert "Current parsed answer=41 reward=0.0" in harness.prompts[1]
    assert "Current parsed answer=42 reward=1.0" in harness.prompts[1]
    assert row.extra_fields["tool_rewards"] == [-0.05, 0.0]


class Retriever(LoopbackSite):
    """A retriever that finds each query itself, with as many scored documents as it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[dict[str, Any]] = []
        self.status, self.num_left_out = 200, 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        found = [
            [{"document": {"contents": f"About {query}\n{query}!"}, "score": 1.0}] * body["topk"]
            for query in body["queries"][self.num_left_out :]
        ]
        return web.json_response({"result": found}, status=self.status)


@pytest.fixture
async def retriever() -> AsyncIterator[Retriever]:
    async with Retriever() as retriever:
        yield retriever


@pytest.fixture
def search_tool(tmp_path: Path, retriever: Retriever) -> str:
    """The file of the search tool, with the address of the retriever."""
    recipe = existing_file("toolConfigPath", "pkg://turnmill/rollout/multi_turn/example_tools/search.yaml")
    text = Path(str(recipe)).read_text().replace("http://127.0.0.1:8000", retriever.url).replace("topk: 3", "topk: 2")
    (tmp_path / "search.yaml").write_text(text)
    return str(tmp_path / "search.yaml")


@pytest.mark.feature("verl's multi-turn", "a search tool")
async def test_the_search_tool_shows_the_policy_the_documents_of_every_query(new_harness: Make, retriever, search_tool):
    harness = new_harness(
        [call("search", query_list=["tea", "rice"]) + END, DONE], toolConfigPath=search_tool, maxToolResponseLength=400
    )

    await harness.play()

    assert retriever.requests == [{"queries": ["tea", "rice"], "topk": 2, "return_scores": True}]
    of_tea, of_rice = (
        "\\n".join(f"Doc {number}(Title: About {query}) {query}!" for number in (1, 2)) for query in ("tea", "rice")
    )
    assert f'{{"result": "{of_tea}\\n---\\n{of_rice}"}}' in harness.prompts[1]


async def test_a_call_of_the_search_tool_without_queries_is_explained_to_the_policy(
    new_harness: Make, retriever, search_tool
):
    harness = new_harness([call("search", query_list=[]) + END, DONE], toolConfigPath=search_tool)

    await harness.play()

    assert "Error: 'query_list' is missing, empty or no list of texts." in harness.prompts[1]
    assert retriever.requests == []


async def test_a_call_of_the_search_tool_with_too_many_queries_is_explained_to_the_policy(
    new_harness: Make, retriever, search_tool
):
    queries = ["tea"] * (MAX_QUERIES + 1)
    harness = new_harness([call("search", query_list=queries) + END, DONE], toolConfigPath=search_tool)

    await harness.play()

    assert f"'query_list' has {MAX_QUERIES + 1} queries, and may have {MAX_QUERIES}." in harness.prompts[1]
    assert retriever.requests == []


async def test_a_retriever_that_leaves_a_query_out_fails_the_trajectory_of_the_search_tool(
    new_harness: Make, retriever, search_tool
):
    retriever.num_left_out = 1
    harness = new_harness([call("search", query_list=["tea", "rice"]) + END, DONE], toolConfigPath=search_tool)

    failure = await harness.play()

    assert isinstance(failure, EpisodeFailure)
    assert "answered 1 of 2 queries" in failure.message


async def test_a_retriever_that_is_down_fails_the_trajectory_of_the_search_tool(
    new_harness: Make, retriever, search_tool
):
    retriever.status = 503
    harness = new_harness([call("search", query_list=["tea"]) + END, DONE], toolConfigPath=search_tool)

    failure = await harness.play()

    assert isinstance(failure, EpisodeFailure)
    assert "failed: 503" in failure.message

"""verl's multi-turn rollout: verl's own worker, loops and tools, and a policy that says what it is told to."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transfer_queue
from verl.tools import function_tool
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from support import trial_loops
from support.trial_tools import FUNCTIONS_FILE, SCALES_FILE, Scales
from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.multi_turn.worker import MultiTurnManager, MultiTurnWorker, manager_class
from turnmill.rollout.token_integrity import count_unsampled_tokens
from turnmill.testing.agent_loops import END, TOKENIZER
from turnmill.testing.conversations import FORGETS, ConversationHarness, conversation_job, summary_of
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
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    # verl loads a file of functions once per process.
    monkeypatch.setattr(function_tool, "FUNCTION_TOOL_REGISTRY", {})
    monkeypatch.setattr(function_tool, "_LOADED_FUNCTION_TOOL_PATHS", {})
    monkeypatch.setattr(Scales, "notes", [])
    (tmp_path / "tools.yaml").write_text(SCALES_FILE)
    (tmp_path / "functions.py").write_text(FUNCTIONS_FILE)

    def make(
        script: Any, *tasks: dict[str, Any], template: str | None = None, reward: str | None = None, **agent: Any
    ) -> ConversationHarness:
        rows = [TASK | task for task in tasks or ({},)]
        (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths = {name: str(tmp_path / agent.get(name, file)) for name, file in PATHS.items()}
        job = conversation_job(tmp_path / "tasks.jsonl", reward=reward, **(agent | paths))
        return ConversationHarness(tmp_path, script, job, **({"template": template} if template else {}))

    return make


PATHS = {"toolConfigPath": "tools.yaml", "functionToolPath": "functions.py"}


def learned(table: ConversationHarness, row: Any) -> str:
    """The text of the tokens that are learned from."""
    return table.tokenizer.decode([t for t, mask in zip(row.response_ids, row.response_mask, strict=True) if mask])


def text(table: ConversationHarness, row: Any) -> str:
    return table.tokenizer.decode(row.response_ids)


# ---- tools ----


@pytest.mark.feature("verl's multi-turn", "file of tools")
async def test_tools_of_a_yaml_file_are_made_with_their_settings_and_shown_by_their_schema(table: Make):
    played = table([call("weigh", weight=3) + END, DONE])

    await played.play()

    assert played.prompts[0].startswith("<|im_start|>system\nTools: weigh")
    # The unit stands in `config`.
    assert "<tool_response>\n3 lb\n</tool_response>" in played.prompts[1]


@pytest.mark.feature("verl's multi-turn", "life of a tool")
async def test_a_tool_is_created_executed_and_released_once_for_every_call(table: Make):
    await table([call("weigh", weight=3) + END, call("weigh", weight=4) + END, DONE]).play()

    once = ["create lb", "execute {'weight': %d}", "release lb"]
    assert Scales.notes == [note.replace("%d", weight) for weight in "34" for note in once]


@pytest.mark.feature("verl's multi-turn", "life of a tool")
async def test_a_tool_that_raises_is_released(table: Make):
    await table([call("weigh", weight=-1) + END, DONE]).play()

    assert Scales.notes == ["create lb", "execute {'weight': -1}", "release lb"]


@pytest.mark.feature("verl's multi-turn", "settings from the data")
async def test_a_tool_is_created_with_what_the_data_says(table: Make):
    kwargs = {"weigh": {"create_kwargs": {"unit": "stone", "gap": None}}, "shout": None}
    played = table([call("weigh", weight=3) + END, DONE], {"extra_info": {"tools_kwargs": kwargs}})

    await played.play()

    assert Scales.notes[0] == "create stone"
    assert "3 stone" in played.prompts[1]


@pytest.mark.feature("verl's multi-turn", "functions as tools")
async def test_functions_are_tools_with_and_without_a_name_sync_and_async(table: Make):
    played = table([call("shout", text="hey") + END, call("later", text="bye") + END, DONE])

    (row,) = await played.play()

    assert '<tool_response>\n{"text": "HEY"}\n</tool_response>' in played.prompts[1]
    assert "<tool_response>\nbye\n</tool_response>" in played.prompts[2]
    assert summary_of(row).metrics["tool_avg_loud"] == 1


@pytest.mark.feature("verl's multi-turn", "names that collide")
def test_two_tools_of_one_name_are_refused(table: Make, tmp_path: Path):
    (tmp_path / "colliding.py").write_text(FUNCTIONS_FILE.replace('"later"', '"weigh"'))

    with pytest.raises(ValueError, match=r"Function tool name\(s\) \['weigh'\] collide"):
        table([], functionToolPath="colliding.py")


@pytest.mark.feature("verl's multi-turn", "limit on parallel calls")
async def test_calls_beyond_the_limit_of_a_response_are_dropped(table: Make):
    said = "".join(call("later", text=word) for word in ("one", "two", "three")) + END
    played = table([said, DONE], maxParallelCalls=2)

    (row,) = await played.play()

    assert played.prompts[1].count("<tool_response>") == 2
    assert "two" in played.prompts[1].rpartition("<tool_response>")[2]
    assert summary_of(row).metrics["num_tool_calls"] == 2


@pytest.mark.feature("verl's multi-turn", "long texts of tools")
@pytest.mark.parametrize(
    ("side", "shown"),
    [("left", "(truncated)...6789"), ("right", "0123...(truncated)"), ("middle", "01...(truncated)...89")],
)
async def test_long_texts_of_tools_are_cut_in_characters(table: Make, side: str, shown: str):
    said = call("later", text="0123456789") + END
    played = table([said, DONE], maxToolResponseLength=4, toolResponseTruncateSide=side)

    await played.play()

    assert f"<tool_response>\n{shown}\n</tool_response>" in played.prompts[1]


@pytest.mark.feature("verl's multi-turn", "tools of a task")
async def test_a_task_may_choose_among_the_tools(table: Make):
    played = table([call("weigh", weight=1) + END, DONE], {"extra_info": {"tool_selection": ["shout", "nothing"]}})

    await played.play()

    assert played.prompts[0].startswith("<|im_start|>system\nTools: shout<|im_end|>")
    assert "Unknown function 'weigh'. Available tools: ['shout']" in played.prompts[1]


@pytest.mark.feature("verl's multi-turn", "texts for mistakes")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (call("fly"), "Unknown function 'fly'. Available tools: ['weigh', 'four', 'later', 'shout']"),
        (call("weigh", weight=-1), "Error executing tool 'weigh': too light"),
        (call("four"), "Error executing tool 'four': @function_tool return tuple must have length 1, 2, or 3"),
        (call("shout", loud=1), "Error executing tool 'shout': "),
    ],
)
async def test_mistakes_of_the_policy_and_of_tools_are_told_to_it(table: Make, said: str, told: str):
    played = table([said + END, DONE], maxToolResponseLength=10_000)

    (row,) = await played.play()

    assert f"<tool_response>\n{told}" in played.prompts[1]
    assert row.extra_fields["tool_rewards"] == [0.0]


@pytest.mark.feature("verl's multi-turn", "texts for mistakes")
async def test_arguments_that_are_no_json_are_told_to_the_policy(table: Make):
    said = "<|start|>assistant<|channel|>commentary to=functions.weigh <|constrain|>json<|message|>{oops<|call|>"
    played = table([said, DONE], format="gpt-oss")

    (row,) = await played.play()

    assert "Invalid JSON in arguments for 'weigh': " in played.prompts[1]
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
async def test_a_trajectory_ends_at_its_limit_of_turns(table: Make, limit: Any, num_responses: int, detail: str):
    played = table(lambda _: call("later", text="on") + END, **limit)

    (row,) = await played.play()

    assert len(played.policy.requests) == num_responses
    assert summary_of(row).stop_reason == "max_turns"
    assert played.logged()[-1].stop_detail == detail


async def test_a_trajectory_ends_where_what_a_tool_answers_does_not_fit(table: Make):
    said = call("later", text="x" * 100) + END
    played = table([said], maxResponseLength=200)

    (row,) = await played.play()

    assert text(played, row) == said
    assert summary_of(row).stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("said", "end"),
    [
        ("0123456789", ("max_tokens", "max_response_length")),
        (f"012345678{END}", ("completed", "no tool call")),
    ],
)
async def test_a_response_that_fills_its_room_is_cut_off_unless_it_ends_there(table: Make, said: str, end: Any):
    played = table([said], maxResponseLength=10)

    (row,) = await played.play()

    assert text(played, row) == said
    assert (summary_of(row).stop_reason, played.logged()[-1].stop_detail) == end


async def test_a_call_that_fills_its_room_ends_the_trajectory(table: Make):
    said = call("later", text="on") + END
    played = table([said], maxResponseLength=len(TOKENIZER.encode(said, add_special_tokens=False)))

    (row,) = await played.play()

    assert summary_of(row).stop_reason == "max_tokens"


# ---- tokens ----


@pytest.mark.feature("verl's multi-turn", "masks")
async def test_only_what_the_policy_said_is_learned_and_it_read_these_very_tokens(table: Make):
    said = "Let me see. " + call("weigh", weight=3) + END
    played = table([said, DONE])

    (row,) = await played.play()

    between = "\n<|im_start|>user\n<tool_response>\n3 lb\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert text(played, row) == said + between + DONE
    assert learned(played, row) == said + DONE
    assert [LOG_PROB * mask for mask in row.response_mask] == row.response_logprobs
    second = played.policy.requests[1]
    assert list(second.prompt_ids) == (row.prompt_ids + row.response_ids)[: len(second.prompt_ids)]
    assert count_unsampled_tokens([(row.response_ids, row.response_mask)], summary_of(row).sampled_tokens) == 0


@pytest.mark.feature("verl's multi-turn", "tokens of the last turn")
async def test_the_last_turn_has_the_tokens_of_the_whole_template(table: Make):
    """A tool's turn is spelled after a fixed history, so that reasoning that the template drops changes nothing."""
    task = {
        "prompt": [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "<think>polite</think>Hello!"},
            {"role": "user", "content": "Weigh it."},
        ]
    }
    said = "<think>scales</think>" + call("weigh", weight=3)
    played = table([said + END, DONE], task)

    await played.play()

    tools = [tool.tool_schema.model_dump(exclude_none=True) for tool in played.worker.tools]
    called = {"name": "weigh", "arguments": {"weight": 3}}
    messages = [
        *task["prompt"],
        {"role": "assistant", "content": "<think>scales</think>", "tool_calls": [{"function": called}]},
        {"role": "tool", "content": "3 lb"},
    ]
    whole = played.tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(played.policy.requests[1].prompt_ids) == whole
    assert "polite" not in played.prompts[1]


@pytest.mark.feature("verl's multi-turn", "sanity check")
@pytest.mark.parametrize(
    ("mode", "said", "warns"),
    [
        ("strict", call("weigh", weight=3), False),
        ("strict", call("weigh", weight=3).replace(": ", ":"), True),
        ("ignore_strippable", call("weigh", weight=3).replace(": ", ":"), False),
        ("ignore_strippable", "Hm. " + call("weigh", weight=3) + "!", True),
        ("disable", "Hm. " + call("weigh", weight=3) + "!", False),
    ],
)
async def test_tokens_that_the_template_spells_otherwise_are_warned_of(
    table: Make, caplog: pytest.LogCaptureFixture, mode: str, said: str, warns: bool
):
    played = table([said + END, DONE], tokenizationSanityCheckMode=mode)

    with caplog.at_level(logging.WARNING, logger="turnmill"):
        (row,) = await played.play()

    expected = f"Inconsistent training and inference tokenization detected ({mode})"
    assert [record for record in caplog.messages if record.startswith(expected)] == caplog.messages[: int(warns)]
    assert summary_of(row).metrics.get("tokenization_differences", 0) == warns
    assert learned(played, row) == said + END + DONE


@pytest.mark.feature("verl's multi-turn", "the template of inference")
async def test_the_policy_may_read_what_inference_would_show_it_and_learns_from_that(table: Make):
    said = "<think>scales</think>Now." + call("weigh", weight=3)
    answer = "<think>fine</think>It is done"
    played = table([said + END, answer + END], template=FORGETS, useInferenceChatTemplate=True)

    first, second = await played.play()

    assert "scales" not in played.prompts[1]
    assert "Now." in played.prompts[1]
    assert (learned(played, first), learned(played, second)) == (said + END, answer + END)
    assert played.tokenizer.decode(second.prompt_ids) == played.prompts[1]
    rows = [(row.response_ids, row.response_mask) for row in (first, second)]
    assert count_unsampled_tokens(rows, summary_of(second).sampled_tokens) == 0


async def test_what_was_said_counts_where_the_context_that_is_spelled_anew_leaves_no_room(table: Make):
    said = "<think>scales</think>Now." + call("weigh", weight=3)
    # A token is a character: two turns fill it.
    played = table([said + END] * 9, template=FORGETS, useInferenceChatTemplate=True, maxResponseLength=200,
                   tokenizationSanityCheckMode="disable", maxAssistantTurns=9)  # fmt: skip

    rows = await played.play()

    assert played.logged()[-1].stop_detail == "no room for a response"
    assert all(0 < len(row.response_ids) == len(row.response_mask) and any(row.response_mask) for row in rows)
    assert "".join(learned(played, row) for row in rows).startswith(said + END)


@pytest.mark.feature("verl's multi-turn", "the template of inference")
async def test_without_it_the_policy_reads_its_reasoning_again(table: Make):
    said = "<think>scales</think>Now." + call("weigh", weight=3)
    played = table([said + END, DONE], template=FORGETS, tokenizationSanityCheckMode="disable")

    (row,) = await played.play()

    assert "<think>scales</think>" in played.prompts[1]
    assert learned(played, row) == said + END + DONE


# ---- agents ----


OWN_LOOPS = """
- {name: twice, _target_: support.trial_loops.Twice, word: again}
- {name: breaks, _target_: support.trial_loops.Breaks}
"""


@pytest.mark.feature("verl's multi-turn", "a loop for each task")
async def test_tasks_of_one_batch_may_have_loops_of_their_own(table: Make):
    played = table(lambda _: call("weigh", weight=3) + END, {"agent_name": "single_turn_agent"}, {},
                   maxAssistantTurns=3)  # fmt: skip

    turns = sorted([(await played.play(task=task))[0].num_turns for task in range(2)])

    # verl counts messages: a prompt and a response, or three responses with tools' answers between them.
    assert turns == [2, 6]


async def test_the_default_loop_is_that_of_the_job(table: Make):
    played = table([call("weigh", weight=3) + END], defaultAgentLoop="single_turn_agent")

    (row,) = await played.play()

    assert "Tools:" not in played.prompts[0]
    assert len(played.policy.requests) == summary_of(row).metrics["num_turns"] == 1


@pytest.mark.feature("verl's multi-turn", "loops and managers of one's own")
@pytest.mark.feature("verl's multi-turn", "several outputs of a trajectory")
async def test_loops_of_ones_own_come_from_a_file_and_may_return_several_outputs(table: Make, tmp_path: Path):
    (tmp_path / "loops.yaml").write_text(OWN_LOOPS)
    played = table(["one" + END, "two" + END], agentLoopConfigPath=str(tmp_path / "loops.yaml"),
                   defaultAgentLoop="twice")  # fmt: skip

    first, last = await played.play()

    assert (text(played, first), text(played, last)) == ("one" + END, "two" + END)
    # The loop says what its last output is worth; all rows of a trajectory have that.
    assert (first.reward_score, last.reward_score) == (0.25, 0.25)
    assert last.extra_fields["reward_extra_info"] == {"word": "again"}


async def test_a_loop_that_tells_no_finite_reward_fails_the_trajectory(table: Make, tmp_path: Path, monkeypatch: Any):
    (tmp_path / "loops.yaml").write_text(OWN_LOOPS)
    monkeypatch.setattr(trial_loops.Twice, "worth", math.nan)
    played = table(lambda _: DONE, agentLoopConfigPath=str(tmp_path / "loops.yaml"), defaultAgentLoop="twice")

    failure = await played.play()

    assert (type(failure), failure.cause) == (EpisodeFailure, "reward")


async def test_a_loop_that_breaks_ends_its_own_trajectory_alone(table: Make, tmp_path: Path):
    (tmp_path / "loops.yaml").write_text(OWN_LOOPS)
    tasks = ({"agent_name": "breaks"}, {"agent_name": "single_turn_agent"})
    played = table(lambda _: DONE, *tasks, agentLoopConfigPath=str(tmp_path / "loops.yaml"))

    outcomes = [await played.play(task=task) for task in range(2)]

    (failure,) = (outcome for outcome in outcomes if isinstance(outcome, EpisodeFailure))
    assert failure.cause == "agent_loop"
    assert "'breaks' broke: ZeroDivisionError" in failure.message
    assert len([outcome for outcome in outcomes if isinstance(outcome, list)]) == 1


async def test_an_unknown_loop_is_a_mistake_in_the_job(table: Make):
    with pytest.raises(SettingsError, match=r"there is no agent loop 'tool_agnt'. Did you mean 'tool_agent'\?"):
        await table([DONE], defaultAgentLoop="tool_agnt").play()


# ---- what is ours ----


@pytest.mark.parametrize(("failure", "num_asked"), [("fail", 1), ("text", 2)])
async def test_a_tool_that_reaches_nobody_ends_the_trajectory_or_is_told(table: Make, failure: str, num_asked: int):
    played = table([call("weigh", weight=0) + END, DONE], onToolFailure=failure)

    outcome = await played.play()

    assert len(played.policy.requests) == num_asked
    if failure == "fail":
        assert isinstance(outcome, EpisodeFailure)
        assert outcome.cause == "tool_connection"
        assert played.logged()[-1].failed_cause == "tool_connection"
    else:
        assert "Error executing tool 'weigh': the scales are away" in played.prompts[1]


async def test_a_tool_that_never_answers_ends_the_trajectory(table: Make, tmp_path: Path):
    hanging = FUNCTIONS_FILE.replace("    return text\n", "    import asyncio\n\n    await asyncio.Event().wait()\n")
    (tmp_path / "hanging.py").write_text(hanging)
    played = table([call("later", text="x") + END], functionToolPath="hanging.py", toolCallTimeout=0.2)

    outcome = await played.play()

    assert isinstance(outcome, EpisodeFailure)
    assert outcome.cause == "tool_timeout"


# ---- managers ----


@pytest.mark.feature("verl's multi-turn", "loops and managers of one's own")
@pytest.mark.parametrize("name", ["support.trial_loops.Sorted", "support.trial_loops.SortedOfVerl"])
def test_a_manager_of_ones_own_is_found_by_its_path(name: str):
    manager = manager_class(name)

    assert issubclass(manager, MultiTurnManager)
    assert manager.generate_sequences is getattr(trial_loops, name.rpartition(".")[2]).generate_sequences
    assert manager.worker_class is MultiTurnWorker


@pytest.mark.feature("verl's multi-turn", "loops and managers of one's own")
def test_the_manager_of_a_job_is_the_one_it_names(tmp_path: Path):
    named = conversation_job(tmp_path / "tasks.jsonl", agentLoopManagerClass="support.trial_loops.Sorted")

    default = conversation_job(tmp_path / "tasks.jsonl")

    assert agent_kind(named.spec.agent).manager_class(named) is trial_loops.Sorted
    assert agent_kind(default.spec.agent).manager_class(default) is MultiTurnManager


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("support.trial_loops.Twice", "is no manager of verl's"),
        ("support.trial_loops.Gone", "names no class"),
    ],
)
def test_a_manager_that_is_none_is_a_mistake_in_the_job(name: str, message: str):
    with pytest.raises(SettingsError, match=message):
        manager_class(name)


@pytest.mark.feature("verl's multi-turn", "several outputs of a trajectory")
async def test_the_outputs_of_a_trajectory_are_rows_of_their_own_in_the_queue(
    table: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "loops.yaml").write_text(OWN_LOOPS)
    played = table(["one" + END, "two" + END], agentLoopConfigPath=str(tmp_path / "loops.yaml"),
                   defaultAgentLoop="twice")  # fmt: skip
    put: list[dict[str, Any]] = []

    async def keep(**given: Any) -> None:
        put.append(given)

    monkeypatch.setattr(transfer_queue, "async_kv_batch_put", keep)
    rows = await played.play(sample=3)
    given = {"uid": "task0", "session_id": 3, "index": 0, "global_steps": 1, "raw_prompt": []}
    await VERLS_WORKER._agent_loop_postprocess(played.worker, rows, False, **given)

    ((keys, tags),) = ((each["keys"], each["tags"]) for each in put)
    assert keys == ["task0_3_0", "task0_3_1"]
    assert [tag["status"] for tag in tags] == ["success", "success"]


# ---- rewards ----


async def test_verls_rewards_are_told_by_the_data_source(table: Make):
    task = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "42"}}
    said = call("weigh", weight=3) + END
    played = table([said, f"#### 42{END}", said, f"#### 41{END}"], task, reward="verl")

    rewards = [(await played.play(sample=sample))[0].reward_score for sample in range(2)]

    assert rewards == [1.0, 0.0]


async def test_a_reward_in_verls_form_comes_from_a_file(table: Make, tmp_path: Path):
    (tmp_path / "reward.py").write_text(
        "def worth(data_source, solution_str, ground_truth, extra_info):\n"
        '    return {"score": len(solution_str) if data_source == "trial" else -1}\n'
    )
    played = table([DONE], reward=f"verl:{tmp_path / 'reward.py'}:worth", defaultAgentLoop="single_turn_agent")

    (row,) = await played.play()

    assert row.reward_score == len("It is done")


async def test_a_reward_that_is_no_finite_number_fails_the_trajectory(table: Make, tmp_path: Path):
    (tmp_path / "reward.py").write_text('def worth(**given):\n    return float("nan")\n')
    played = table([DONE], reward=f"verl:{tmp_path / 'reward.py'}:worth", defaultAgentLoop="single_turn_agent")

    failure = await played.play()

    assert (type(failure), failure.cause) == (EpisodeFailure, "reward")


# ---- files ----


def test_files_may_lie_in_a_package():
    path = "pkg://turnmill/rollout/multi_turn/example_tools/gsm8k.yaml"

    found = existing_file("toolConfigPath", path)

    assert found is not None
    assert "calc_gsm8k_reward" in Path(found).read_text()


@pytest.mark.parametrize("path", ["/nowhere/tools.yaml", "pkg://turnmill/nowhere.yaml", "pkg://no_such_package/a.yaml"])
def test_a_file_that_is_not_there_is_a_mistake_in_the_job(path: str):
    with pytest.raises(SettingsError, match=r"spec.agent.toolConfigPath: .* (is no file|there is no package)"):
        existing_file("toolConfigPath", path)


async def test_the_tool_of_verls_recipe_says_whether_an_answer_is_right(table: Make):
    kwargs = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "42"}}}
    said = call("calc_gsm8k_reward", answer="41") + call("calc_gsm8k_reward", answer="42") + END
    recipe = existing_file("toolConfigPath", "pkg://turnmill/rollout/multi_turn/example_tools/gsm8k.yaml")
    played = table([said, DONE], {"extra_info": {"tools_kwargs": kwargs}}, toolConfigPath=recipe, maxParallelCalls=2)

    (row,) = await played.play()

    assert "Current parsed answer=41 reward=0.0" in played.prompts[1]
    assert "Current parsed answer=42 reward=1.0" in played.prompts[1]
    assert row.extra_fields["tool_rewards"] == [-0.05, 0.0]

"""Conversion of a verl-tool command line into a job: verl's settings, and those of its agent."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic.alias_generators import to_snake

from turnmill.conversion import verl
from turnmill.conversion.command_line import read_settings
from turnmill.conversion.converted_job import Conversion, new_job
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.jobs.values import fields_by_alias

AGENT = "actor_rollout_ref.agent"

FIELDS: Mapping[str, str] = {
    # Fields of other agents are none of this one's.
    **{
        name: path
        for name, path in verl.FIELDS.items()
        if not path.startswith("agent.") or path.removeprefix("agent.") in fields_by_alias(ToolAgent)
    },
    **{f"{AGENT}.{to_snake(name)}": f"agent.{name}" for name in fields_by_alias(ToolAgent)},
    f"{AGENT}.n": "agent.groupSize",
}
"""Fields of a job by the names of verl-tool and verl."""

WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(
        (f"{AGENT}.rollout_mode", f"{AGENT}.enable_tqdm", f"{AGENT}.over_sampling"), "it has no effect in verl-tool."
    ),
    f"{AGENT}.assistant_role": "the chat template of the model knows it.",
    f"{AGENT}.close_traj_time": "the release of a trajectory does not block.",
    f"{AGENT}.max_model_len": "it follows from the lengths of prompt and response.",
    f"{AGENT}.train_max_response_length": "set spec.agent.maxResponseLength.",
    "reward_model.launch_reward_fn_async": "rewards are always computed beside the rollout.",
}
"""Settings of verl-tool without a place in a job, and why."""

MANAGER = "reward_model.reward_manager"
REWARDS = {"torl": "math_verify", "search_r1_qa_em": "verl", "naive": "verl", "dapo": "verl"}
"""Rewards by the names of reward managers that score as they do."""


def convert(words: Iterable[str], *, steps: int | None = None, tool_type: str | None = None) -> Conversion:
    """Convert the words of a verl-tool command line. Raises SettingsError if it has no number of steps.

    With `tool_type` the run starts the server of these tools itself, in place of the one that the script starts.
    """
    given = read_settings(words)
    found = new_job(given, "verl-tool")
    found.put("agent.type", "tool")
    url = f"{AGENT}.tool_server_url"
    if tool_type is not None:
        given.pop(url, None)
        found.put("agent.toolType", tool_type)
    elif url in given:
        found.note(
            url, "a server must be there; with --tool-type TOOLS the run starts one of its own, as the script does."
        )
    if given.get(f"{AGENT}.val_max_turns") == 0:
        # As many as in training.
        del given[f"{AGENT}.val_max_turns"]
    for name, sentence in WITHOUT_EFFECT.items():
        if given.pop(name, None) is not None:
            found.note(name, sentence)
    _put_stop_tokens(found, given)
    manager = given.pop(MANAGER, None)
    verl.put_learning(found, given, FIELDS, steps)
    if manager in REWARDS:
        found.put("environment.options.reward", REWARDS[str(manager)])
    elif manager is not None:
        found.note(
            MANAGER,
            f"{manager} is a class of verl-tool's. The job has verl's function for the data_source of a row; for "
            "another set spec.environment.options.reward to verl:FILE:FUNCTION.",
        )
    return found


def _put_stop_tokens(found: Conversion, given: dict[str, object]) -> None:
    """Put the stop tokens of a file into the job, as scripts make the file for one run."""
    file = given.get(f"{AGENT}.action_stop_tokens")
    if isinstance(file, str) and Path(file).is_file():
        del given[f"{AGENT}.action_stop_tokens"]
        tokens = [token for token in Path(file).read_text(encoding="utf-8").split(",") if token]
        found.put("agent.stopTokens" if tokens else "agent.actionStopTokens", tokens or "")

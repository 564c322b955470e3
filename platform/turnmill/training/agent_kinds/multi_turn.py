"""The agent kind `multi_turn`: verl's own agent loops, with verl's names of settings."""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.multi_turn_agent import MultiTurnAgent
from turnmill.jobs.problems import Problem
from turnmill.jobs.values import Values
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.agent_kinds import checks
from turnmill.training.agent_kinds.base import AgentKind

PACKAGE = "pkg://"


class MultiTurnKind(AgentKind[MultiTurnAgent]):
    """Conversations in which the policy calls functions in the model's own format."""

    manager = "turnmill.rollout.multi_turn.worker:MultiTurnManager"
    warm_start_recipe = "turnmill.training.warm_start.recipes:TaskRecipe"

    def manager_class(self, job: AgentTrainingJob) -> type[Any]:
        """Import the manager class, or the user's own if the job names one."""
        from turnmill.rollout.multi_turn.worker import manager_class

        manager: type[Any] = manager_class(self.agent.agent_loop_manager_class)
        return manager

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings under verl's `rollout.multi_turn` and `rollout.agent`."""
        agent, rollout = self.agent, "actor_rollout_ref.rollout"
        multi_turn, loops = f"{rollout}.multi_turn", f"{rollout}.agent"
        return super().verl_settings(job) | {
            "data.return_multi_modal_inputs": agent.return_multi_modal_inputs,
            f"{multi_turn}.enable": True,
            f"{multi_turn}.tool_config_path": existing_file("toolConfigPath", agent.tool_config_path),
            f"{multi_turn}.function_tool_path": existing_file("functionToolPath", agent.function_tool_path),
            f"{multi_turn}.format": agent.format,
            f"{multi_turn}.max_assistant_turns": agent.max_assistant_turns,
            f"{multi_turn}.max_user_turns": agent.max_user_turns,
            f"{multi_turn}.max_parallel_calls": agent.max_parallel_calls,
            f"{multi_turn}.max_tool_response_length": agent.max_tool_response_length,
            f"{multi_turn}.tool_response_truncate_side": agent.tool_response_truncate_side,
            f"{multi_turn}.use_inference_chat_template": agent.use_inference_chat_template,
            f"{multi_turn}.tokenization_sanity_check_mode": agent.tokenization_sanity_check_mode,
            f"{loops}.default_agent_loop": agent.default_agent_loop,
            f"{loops}.agent_loop_config_path": existing_file("agentLoopConfigPath", agent.agent_loop_config_path),
            f"{loops}.agent_loop_manager_class": agent.agent_loop_manager_class or self.manager.replace(":", "."),
        }

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum number of tokens of a task's prompt."""
        return self.agent.max_prompt_length

    @classmethod
    def problems(cls, values: Values) -> Iterator[Problem]:
        """Yield problems with the tasks and with the classes of tools."""
        from turnmill.rollout.multi_turn.removed_tools import missing_classes

        yield from checks.task_problems(values)
        path = values["spec.agent.toolConfigPath"]
        if path is not None and Path(path).is_file():
            for name, way_out in missing_classes(Path(path)):
                place = "spec.agent.toolConfigPath"
                yield Problem(place, path, f"names the class {name}, which cannot be loaded", way_out)

    @classmethod
    def warm_start_problems(cls, values: Values) -> Iterator[Problem]:
        """Yield a problem if the tasks have no demonstrations."""
        yield from checks.demonstration_problems(values)


def existing_file(field: str, path: str | None) -> str | None:
    """Return the path of a file that the agent's settings name; `pkg://package/path` is a file of an installed package.

    Raises SettingsError if there is no such file.
    """
    if path is None:
        return None
    place = f"spec.agent.{field}: {path!r}"
    if path.startswith(PACKAGE):
        package, _, rest = path.removeprefix(PACKAGE).partition("/")
        try:
            path = str(files(package) / rest)
        except ModuleNotFoundError as error:
            raise SettingsError(f"{place}: there is no package {package!r}. Install it, or give a path.") from error
    if not Path(path).is_file():
        raise SettingsError(f"{place} is not a file. Give its path on the machine where the job runs.")
    return path

"""Python interface to GRL's trainer: agents of your own, and runs of them.

    from turnmill.grl import AgentTrainer, BaseAgent, EnvOutput, register_agent

Processes of agents import this module too, so it imports only what agents need until a trainer is created.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from turnmill.core.errors import SettingsError
from turnmill.environments.grl import (
    BaseAgent,
    EnvironmentAgent,
    EnvOutput,
    get_agent_cls,
    list_agents,
    register_agent,
)

if TYPE_CHECKING:
    from turnmill.jobs import AgentTrainingJob
    from turnmill.runs.local import RunResult
    from turnmill.runs.watch import Report
    from turnmill.training.grl.config import Configuration
    from turnmill.training.grl.sync_rollout import SyncMultiTurnRollout

__all__ = [
    "AgentTrainer",
    "BaseAgent",
    "EnvOutput",
    "EnvironmentAgent",
    "SyncMultiTurnRollout",
    "get_agent_cls",
    "list_agents",
    "register_agent",
]


def __getattr__(name: str) -> object:
    """Import the rollout when it is asked for: it needs verl, which processes of agents do without."""
    if name == "SyncMultiTurnRollout":
        from turnmill.training.grl.sync_rollout import SyncMultiTurnRollout

        return SyncMultiTurnRollout
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Arguments of GRL's scripts without effect here, as agents have tasks and rewards of their own.
_UNUSED = frozenset(
    {"train_dataset", "val_dataset", "collate_fn", "train_sampler", "device_name"} | {"ray_worker_group_cls"}
)


_REWARDS = {"reward_fn": "rewardFunction", "val_reward_fn": "validationRewardFunction"}


class AgentTrainer:
    """Trains agents by a GRL configuration, or by a job."""

    def __init__(
        self,
        config: "Configuration",
        tokenizer: object = None,
        role_worker_mapping: object = None,
        resource_pool_manager: object = None,
        processor: object = None,
        *,
        overrides: Sequence[str] = (),
        output: Path | str | None = None,
        resume: bool = False,
        on_progress: "Report | None" = None,
        **unused: object,
    ) -> None:
        """Read a configuration, and parse it as a job.

        `config` is a mapping, an OmegaConf configuration, or the path of a YAML file. `overrides` are settings such as
        `resources.device=cpu`, as for `--set`. `output` is the run folder, by default a new one in runs/. Other
        arguments of GRL's scripts are accepted without effect, as turnmill creates tokenizer, workers and pools itself;
        data sets are refused. `reward_fn` and `val_reward_fn` decide the rewards, unless they are GRL's own, which
        returns those of the agents.
        Raises TypeError for unknown arguments, SettingsError for an invalid configuration.
        """
        if unknown := sorted(unused.keys() - _UNUSED - _REWARDS.keys()):
            raise TypeError(f"AgentTrainer has no argument {unknown[0]!r}. Remove it.")
        if given := [name for name in ("train_dataset", "val_dataset") if unused.get(name) is not None]:
            raise SettingsError(f"{given[0]}: agents bring their own tasks. Give None.")
        functions = [
            f"agent.{field}={_path_of_function(name, unused[name])}"
            for name, field in _REWARDS.items()
            # GRL's scripts pass one that returns the scores of the agents.
            if unused.get(name) is not None and type(unused[name]).__name__ != "DummyRewardManager"
        ]
        self.job: AgentTrainingJob = _job_of(config, [*functions, *overrides])
        self.output = Path(output) if output is not None else None
        self.resume = resume
        self._on_progress = on_progress
        self._checked = False

    def init_workers(self) -> None:
        """Check everything that can be checked before the run; the processes start in `fit`. Raises JobError."""
        from turnmill.cli import checks
        from turnmill.jobs import check_job
        from turnmill.jobs.load import model_folders

        check_job(self.job, (model_folders, *checks.ALL))
        self._checked = True

    def fit(self) -> "RunResult":
        """Train to the last step; return the run folder and a summary. Raises RunFailedError with a cause."""
        if not self._checked:
            self.init_workers()
        from turnmill.cli.run_dirs import choose_run_dir
        from turnmill.runs.local import launch

        _share_script_folder()
        run_dir = choose_run_dir(self.job, self.output, resume=self.resume)
        return launch(self.job, run_dir, resume=self.resume, on_progress=self._on_progress)


def _job_of(config: "Configuration", overrides: Sequence[str]) -> "AgentTrainingJob":
    from turnmill.jobs import JobError, parse_job
    from turnmill.jobs.overrides import apply_overrides
    from turnmill.training.grl.config import job_data

    data, _, problems = apply_overrides(job_data(config), overrides)
    if problems:
        raise JobError(problems)
    return parse_job(data)


def _path_of_function(name: str, function: object) -> str:
    """Return a path by which the processes of a run find a function. Raises SettingsError if they cannot import it."""
    module, qualified = getattr(function, "__module__", ""), str(getattr(function, "__qualname__", ""))
    file = getattr(sys.modules["__main__"], "__file__", None) if module == "__main__" else None
    module = Path(file).stem if file else module
    if not qualified.isidentifier() or module == "__main__":
        raise SettingsError(
            f"{name}: the processes of a run import it, and {function!r} is no function at the top of a module. "
            "Define it there with def."
        )
    return f"{module}:{qualified}"


def _share_script_folder() -> None:
    """Add the script's folder to PYTHONPATH, so that the processes of a run can import the agents in it."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    folders = [str(Path(file).parent.absolute())] if file else []
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, known)])

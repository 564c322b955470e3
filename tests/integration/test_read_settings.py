"""A run that is watched: what all its processes read of verl's settings, and a validation with several samples."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import setting_reads
from support.training_runs import TOOL_JOB, TrainingRun
from turnmill.runs.fork_server.launcher import INTERPRETER
from turnmill.training.verl import known_settings
from turnmill.training.verl.config import compose_defaults
from turnmill.training.verl.ineffective_settings import needs_another

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# With what makes verl read most: a critic, a reference, an entropy, a validation and a checkpoint.
SETTINGS = (
    *("algorithm.type=ppo", "algorithm.kl.in=loss", "algorithm.entropyCoefficient=0.001", "training.steps=1"),
    "training.validation={episodes: 4, samples: 4, temperature: 1}",
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, interpreter_with_imports: Path) -> Iterator[TrainingRun]:
    """Return a run that has ended, whose reads are in the folder `reads` beside its own."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "job.yaml").write_text(TOOL_JOB)
    variables = setting_reads.variables(folder / "reads") | {INTERPRETER: str(interpreter_with_imports)}
    with TrainingRun(folder / "job.yaml", folder / "run", variables) as run:
        run.train(*(word for setting in SETTINGS for word in ("--set", setting)))
        yield run


@pytest.mark.feature("verl's multi-turn", "settings without effect")
def test_every_setting_is_read_in_a_run_or_refused_or_listed_with_what_it_needs(watched):
    defaults = compose_defaults()
    names = [*known_settings._names(defaults)]
    leaves = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
    read = setting_reads.read_settings(watched.folder.with_name("reads"), defaults)
    unread = [name for name in leaves if name not in read and not name.endswith("._target_")]

    # The settings of this job, which would be missing if the recording did not work.
    assert {"actor_rollout_ref.actor.optim.clip_grad", "critic.optim.lr", "actor_rollout_ref.model.path"} <= read
    assert len(read) > 300
    assert [
        name for name in unread if not known_settings.names_without_effect({name: 1}) and needs_another(name) is None
    ] == []


@pytest.mark.feature("verl-tool", "several samples per validation task")
def test_a_validation_plays_each_task_several_times_and_counts_votes(watched):
    before = watched.metrics[0]

    for value in ("reward", "success"):
        worst, best, maj = (before[f"validation/{value}/{kind}@4/mean"] for kind in ("worst", "best", "maj"))
        # verl draws samples for all but the mean.
        assert -0.02 <= worst <= before[f"validation/{value}/mean@4"] + 0.02 <= best + 0.04
        assert 0 <= maj <= 1
    assert before["validation/episodes"] == 4

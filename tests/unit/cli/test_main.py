import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from support.models import model_without_weights
from turnmill import __version__
from turnmill.cli.main import main
from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.observability.progress import Progress
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord

JOB = """\
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: small}
spec:
  model: {warmStart: {}}
  agent: {prompt: compact}
  environment: {name: babyai, task: GoToObj}
  training: {steps: 2, turnsPerStep: 256}
"""

Launch = Callable[..., Any]


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("job.yaml").write_text(JOB)


@pytest.fixture
def use_launch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Launch], None]:
    """Replaces the function that launches a run."""

    def replace_launch(launch: Launch) -> None:
        module = ModuleType("turnmill.runs.local")
        module.launch = launch
        monkeypatch.setitem(sys.modules, "turnmill.runs.local", module)

    return replace_launch


def finish(job: Any, run_dir: Path, *, resume: bool, on_progress: Callable[[Progress], None]) -> None:
    """Train two steps and end."""
    folder = RunFolder(run_dir)
    folder.create()
    folder.write_job(JOB)
    on_progress(Progress("training", 1, 2, success=0.5))
    on_progress(Progress("training", 2, 2, success=0.9))
    folder.write_summary({"success_first": 0.37, "success_final": 0.95, "seconds_total": 423})


def test_a_run_prints_its_steps_and_its_results(use_launch, capsys):
    use_launch(finish)

    code = main(["run", "job.yaml"])

    output = capsys.readouterr().out
    assert code == 0
    assert "training 2/2: success 0.90" in output
    assert "Done in 7 min 3 s: success 0.37 before, 0.95 after. Everything is in runs/small" in output
    assert "turnmill report runs/small" in output


@pytest.mark.feature("Verlog", "a look at the outputs before training")
def test_an_evaluation_is_a_run_without_steps_and_prints_its_success(use_launch, capsys):
    steps = []

    def evaluate(job: Any, run_dir: Path, **_: object) -> None:
        steps.append(job.spec.training.steps)
        folder = RunFolder(run_dir)
        folder.create()
        folder.write_summary({"success_first": 0.25, "success_first_interval": [0.18, 0.33], "success_final": None})

    use_launch(evaluate)

    assert main(["run", "job.yaml", "--evaluate"]) == 0
    assert steps == [0]
    assert "Done: success 0.25 (0.18 to 0.33). Everything is in runs/small" in capsys.readouterr().out


def test_a_job_that_is_evaluated_alone_must_have_validations(use_launch, capsys):
    use_launch(finish)

    assert main(["run", "job.yaml", "--evaluate", "--set", "training.validation.episodes=0"]) == 2
    assert "spec.training.validation.episodes: 0 must be more than 0" in capsys.readouterr().err


@pytest.fixture
def gpu_job(tmp_path) -> None:
    """A job with a model on GPUs of a known kind."""
    model = model_without_weights(tmp_path / "model")
    (model / "model.safetensors").touch()
    resources = "  resources: {device: cuda, train: {accelerator: A10G}}\n"
    Path("job.yaml").write_text(JOB.replace("{warmStart: {}}", f"{{path: {model}}}") + resources)


def test_an_explained_job_shows_its_processes_and_what_its_gpus_hold(gpu_job, capsys):
    code = main(["check", "job.yaml", "--explain"])

    output = capsys.readouterr().out
    assert code == 0
    assert "1 x 1 A10G  a rank of the policy, a rank of the critic, a rank of the reference, an engine" in output
    assert "policy: activations of a micro-batch" in output
    assert "sum, of 22.5" in output
    assert "The cache of an engine holds" in output


def test_an_explained_job_that_does_not_fit_is_refused_after_its_tables(gpu_job, capsys):
    code = main(["check", "job.yaml", "--explain", "--gpu-memory", "2"])

    shown = capsys.readouterr()
    assert code == 2
    assert "sum, of 2.0" in shown.out
    assert "GiB on each GPU, which has 2.0 GiB" in shown.err


def test_a_warm_start_and_a_job_for_cpus_are_not_explained(gpu_job, capsys):
    assert main(["check", "job.yaml", "--explain", "--set", "resources.device=cpu"]) == 2
    assert "estimates are for GPUs" in capsys.readouterr().err

    Path("job.yaml").write_text(JOB)
    assert main(["check", "job.yaml", "--explain"]) == 2
    assert "--explain: spec.model.warmStart makes a tiny model" in capsys.readouterr().err


def test_a_run_prints_the_intervals_of_its_success(use_launch, capsys):
    def finish_with_intervals(job: Any, run_dir: Path, **options: Any) -> None:
        finish(job, run_dir, **options)
        folder = RunFolder(run_dir)
        intervals = {"success_first_interval": [0.31, 0.434], "success_final_interval": [0.9, 0.98]}
        folder.write_summary(folder.read_summary() | intervals)

    use_launch(finish_with_intervals)

    main(["run", "job.yaml"])

    assert "success 0.37 (0.31 to 0.43) before, 0.95 (0.90 to 0.98) after." in capsys.readouterr().out


def test_repeated_runs_get_numbered_folders(use_launch):
    use_launch(finish)

    assert [main(["run", "job.yaml"]) for _ in range(3)] == [0, 0, 0]
    assert sorted(folder.name for folder in Path("runs").iterdir()) == ["small", "small-2", "small-3"]


def test_overrides_and_resume_reach_the_trainer(use_launch):
    seen = []
    use_launch(lambda job, run_dir, *, resume, on_progress: seen.append((job.spec.training.steps, run_dir, resume)))
    finish(None, Path("there"), resume=False, on_progress=lambda progress: None)

    main(["run", "job.yaml", "--set", "training.steps=7", "--output", "there", "--resume"])

    assert seen == [(7, Path("there"), True)]


def test_a_failed_run_exits_with_1_and_prints_the_resume_command(use_launch, capsys):
    def fail(*arguments: Any, **options: Any) -> None:
        raise RunFailedError("Nothing moved for 600 s.", "stalled")

    use_launch(fail)

    assert main(["run", "job.yaml"]) == 1
    assert capsys.readouterr().err == (
        "The run failed (stalled): Nothing moved for 600 s.\n"
        "Resume it with: turnmill run job.yaml --resume --output runs/small\n"
    )


def test_the_resume_command_repeats_the_overrides(use_launch, capsys):
    def fail(*arguments: Any, **options: Any) -> None:
        raise RunFailedError("Nothing moved for 600 s.", "stalled")

    use_launch(fail)
    overrides = ["--set", "training.steps=7", "--set", "agent.memory={textTurns: 1}"]

    main(["run", "job.yaml", *overrides])

    command = capsys.readouterr().err.partition("Resume it with: ")[2]
    assert shlex.split(command) == ["turnmill", "run", "job.yaml", *overrides, "--resume", "--output", "runs/small"]


def test_an_interrupted_run_exits_with_130_and_prints_the_resume_command(use_launch, capsys):
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    use_launch(interrupt)

    assert main(["run", "job.yaml"]) == 130
    assert "turnmill run job.yaml --resume --output runs/small" in capsys.readouterr().err


def test_settings_that_this_machine_cannot_run_exit_with_2(use_launch, capsys):
    def refuse(*arguments: Any, **options: Any) -> None:
        raise SettingsError("spec.resources.device: cuda, but this machine shows no GPU.")

    use_launch(refuse)

    assert main(["run", "job.yaml"]) == 2
    assert "shows no GPU" in capsys.readouterr().err


def test_an_invalid_job_is_not_launched(use_launch):
    use_launch(lambda *arguments, **options: pytest.fail("was launched"))

    assert main(["run", "job.yaml", "--set", "training.steps=-1"]) == 2
    assert not Path("runs").exists()


def test_check_confirms_a_valid_job_in_one_line(capsys):
    assert main(["check", "job.yaml"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("job.yaml is fine: small trains a tiny warm-started model on babyai GoToObj for 2 steps")


def test_check_reports_problems_of_job_and_environment_together(capsys):
    overrides = ["training.seed=-1", "environment.task=GoToObjj", "environment.options.bogus=1"]

    code = main(["check", "job.yaml", *(part for override in overrides for part in ("--set", override))])

    first, *problems = capsys.readouterr().err.splitlines()
    assert code == 2
    assert first == "job.yaml has 3 problems; nothing was started."
    assert {problem.split(":")[0] for problem in problems} == {
        "spec.training.seed",
        "spec.environment.task",
        "spec.environment.options.bogus",
    }


def test_check_refuses_an_unknown_environment(capsys):
    assert main(["check", "job.yaml", "--set", "environment.name=babyay"]) == 2
    assert "spec.environment.name: there is no environment 'babyay'. Did you mean 'babyai'" in capsys.readouterr().err


def test_check_refuses_a_warm_start_of_an_environment_without_an_expert(capsys):
    overrides = ["environment.name=maths", "environment.task=null", "environment.options={}"]

    assert main(["check", "job.yaml", *(part for override in overrides for part in ("--set", override))]) == 2
    assert "spec.model.warmStart: has no expert for a warm start" in capsys.readouterr().err


def test_check_prints_brackets_unchanged(capsys):
    assert main(["check", "job.yaml", "--set", "tracking.loggers=[file, nobody]"]) == 2
    assert "spec.tracking.loggers[1]: 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["check"], ["check", "job.yaml", "--fly"], ["check", "absent.yaml"], ["report", "absent"], []],
)
def test_an_invalid_command_exits_with_2(arguments: list[str]):
    assert main(arguments) == 2


def test_crd_prints_the_definition_and_the_policy(capsys):
    assert main(["crd"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {each["metadata"]["name"] for each in documents} == {"agenttrainingjobs.turnmill.dev"}
    assert [each["kind"] for each in documents] == [
        "CustomResourceDefinition",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"turnmill {__version__}\n"


def test_checking_a_job_does_not_import_training_libraries():
    program = (
        "import json, sys; from turnmill.cli.main import main; main(['check', 'job.yaml']);"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    path = [folder for folder in sys.path if folder]

    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {program}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    imported = set(json.loads(result.stdout.splitlines()[-1]))
    assert not imported & {"torch", "ray", "verl", "vllm", "transformers", "matplotlib", "hydra"}


@pytest.mark.parametrize(
    ("cause", "code"), [("rollout", 1), ("stale_attempt", 3), ("failed_ratio", 4), ("environment", 4), ("settings", 4)]
)
def test_the_exit_code_of_an_attempt_shows_whether_a_retry_can_succeed(monkeypatch, capsys, tmp_path, cause, code):
    def join(attempt: Any, **_: Any) -> None:
        raise RunFailedError("It broke.", cause)

    module = ModuleType("turnmill.runs.cluster")
    module.join = join
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("TURNMILL_JOB", json.dumps(yaml.safe_load(JOB)))
    monkeypatch.setenv("TURNMILL_ATTEMPT", "1")
    monkeypatch.setenv("TURNMILL_RUN_DIR", str(tmp_path))

    assert main(["run", "--ray", "auto"]) == code
    assert f"The run failed ({cause}): It broke." in capsys.readouterr().err


TURN = TurnRecord(
    episode="e0-0",
    environment=0,
    turn=0,
    step=1,
    policy_version=0,
    prompt="You see a red ball.",
    response="THINK: it is ahead\nACTION: go forward",
    action="go forward",
    reward=1.0,
    done=True,
    stop_reason="completed",
)


@pytest.fixture
def run_dir() -> Path:
    """A run with an episode that was solved in step 1 and one that failed in step 2."""
    folder = RunFolder("run")
    folder.create()
    folder.write_job(JOB)
    failed = replace(TURN, episode="e1-0", step=2, reward=0.0, stop_reason="failed", failed_cause="environment")
    TrajectoryLog(folder).append([TURN, failed])
    return folder.path


@pytest.mark.parametrize(
    ("options", "shown", "hidden"),
    [
        ([], ["e0-0", "e1-0", "2 episodes"], []),
        (["--step", "1"], ["e0-0"], ["e1-0"]),
        (["--failed"], ["e1-0"], ["e0-0"]),
        (["--limit", "1"], ["e1-0", "the last 1 shown"], ["e0-0"]),
        (["--episode", "e0-0"], ["You see a red ball.", "go forward"], ["e1-0"]),
    ],
)
def test_trajectories_prints_the_selected_episodes(
    run_dir: Path, options: list[str], shown: list[str], hidden: list[str], capsys
):
    code = main(["trajectories", str(run_dir), *options])

    output = capsys.readouterr().out
    assert code == 0
    assert [text for text in shown if text not in output] == []
    assert [text for text in hidden if text in output] == []


def test_an_unknown_episode_exits_with_2(run_dir: Path, capsys):
    assert main(["trajectories", str(run_dir), "--episode", "e9-9"]) == 2
    assert "has no such episode" in capsys.readouterr().err


def test_report_prints_results_if_the_curve_cannot_be_written(run_dir: Path, capsys):
    RunFolder(run_dir).append_metrics(1, {"validation/success": 0.37})
    # A folder of that name: not even root can write the file.
    (run_dir / "curve.png").mkdir()

    code = main(["report", str(run_dir)])

    output = capsys.readouterr()
    assert code == 0
    assert "37%" in output.out
    assert "The curve was not drawn: " in output.err


def test_report_prints_results_and_draws_the_curve(run_dir: Path, capsys):
    RunFolder(run_dir).append_metrics(1, {"validation/success": 0.37})

    code = main(["report", str(run_dir)])

    assert code == 0
    assert "37%" in capsys.readouterr().out
    assert (run_dir / "curve.png").stat().st_size > 0


def second_run(source: Path, **change: Any) -> Path:
    """Create a run with the validation episode of `source`, changed."""
    folder = RunFolder("second")
    for each, turn in ((RunFolder(source), TURN), (folder, replace(TURN, **change))):
        each.create()
        each.write_job(JOB)
        TrajectoryLog(each).append([turn], validation=True)
        each.append_metrics(1, {"validation/success": 1.0})
    return folder.path


def test_report_compares_two_runs(run_dir: Path, capsys):
    other = second_run(run_dir, reward=-1.0)

    code = main(["report", str(run_dir), str(other)])

    output = capsys.readouterr().out
    assert code == 0
    assert "difference, B - A" in output
    assert "-100.0 points" in output
    assert not (run_dir / "curve.png").exists()


def test_report_refuses_to_compare_runs_without_common_episodes(run_dir: Path, capsys):
    other = second_run(run_dir, prompt="You see a blue box.")

    assert main(["report", str(run_dir), str(other)]) == 2
    assert "have no validation episode in common: their numbers or first prompts" in capsys.readouterr().err


def test_report_refuses_to_compare_with_a_folder_that_holds_no_run(run_dir: Path, capsys):
    assert main(["report", str(run_dir), "elsewhere"]) == 2
    assert "elsewhere holds no run" in capsys.readouterr().err


def test_closing_the_terminal_interrupts_a_run_like_ctrl_c(use_launch: Callable[[Launch], None], capsys):
    def hang_up(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        pytest.fail("the run continued")

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        use_launch(hang_up)
        assert main(["run", "job.yaml"]) == 130
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "Interrupted. Resume it with: " in capsys.readouterr().err

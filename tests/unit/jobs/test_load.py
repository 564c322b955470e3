import json
from pathlib import Path

import pytest

from turnmill.jobs import AgentTrainingJob, JobError, dump_job, job_from_json, load_job
from turnmill.jobs.hub import local_folder

JOB = """\
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: small}
spec:
  model: {warmStart: {}}
  agent: {prompt: compact}
  environment: {name: babyai}
  training:
    steps: 2
    turnsPerStep: 256
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


def load(file: Path, text: str = JOB, *overrides: str) -> AgentTrainingJob:
    file.write_text(text)
    return load_job(file, overrides)


def problems_of(file: Path, text: str = JOB, *overrides: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        load(file, text, *overrides)
    return [str(problem) for problem in caught.value.problems]


def test_missing_fields_have_their_defaults(file: Path):
    job = load(file)

    assert job.spec.training.turns_per_step == 256
    assert job.spec.environment.count == 32
    assert job.spec.algorithm.step_gamma == 0.99


def test_a_dumped_job_loads_as_the_same_job(file: Path):
    job = load(file, JOB, "algorithm.actorLearningRate=1e-6", "tracking.loggers=[console]", "verl={a.b: 1}")

    assert load(file, dump_job(job)) == job


def test_a_number_with_an_exponent_but_no_decimal_point_is_a_number(file: Path):
    job = load(file, JOB.replace("  training:", "  algorithm: {actorLearningRate: 5e-4}\n  training:"))

    assert job.spec.algorithm.actor_learning_rate == 5e-4


def test_all_problems_are_reported_together_in_the_order_of_the_file(file: Path):
    text = (
        JOB.replace("small", "Not_A_Name")
        .replace("prompt: compact", "prompt: compact, maxTurns: 0")
        .replace("steps: 2", "stepz: 2")
        .replace("256", "250")
    )

    problems = problems_of(file, text)

    assert [problem.split(":")[0] for problem in problems] == [
        "metadata.name",
        "spec.algorithm.minibatchTurns",
        "spec.agent.maxTurns",
        "spec.training.steps",
        "spec.training.stepz",
        "spec.training.turnsPerStep",
    ]


def test_a_problem_has_path_value_rule_suggestion_and_line(file: Path):
    problems = problems_of(file, JOB.replace("256", "250"), "algorithm.minibatchTurns=125")

    assert problems == [
        "spec.training.turnsPerStep: 250 must be a multiple of spec.environment.count (32): "
        "every environment gives the same number of turns. Try 256. (line 10)"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", "line 2, column 2: expected ',' or ']'"),
        ("a:\n\t- b\n", "line 2, column 1: found character '\\t'"),
        ("", "is empty. Write a job into it"),
        ("# nothing yet\n", "is empty. Write a job into it"),
        ("- a\n", "holds a list instead of a mapping"),
        ("steps\n", "holds a single value instead of a mapping"),
        ("---\na: 1\n---\nb: 2\n", "line 3, column 1: but found another document"),
    ],
)
def test_a_file_that_is_not_a_mapping_is_refused(file: Path, text: str, message: str):
    (problem,) = problems_of(file, text)

    assert message in problem


def test_a_missing_file_is_refused(file: Path):
    with pytest.raises(JobError, match="there is no such file"):
        load_job(file)


def test_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(JobError, match="is a folder"):
        load_job(tmp_path)


def test_a_file_that_is_not_text_is_refused(file: Path):
    file.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(JobError, match="is not text"):
        load_job(file)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("bad\0name", "line 3: a character that YAML does not allow, U+0000. Remove it."),
        ("bad\x1b[1m", "line 3: a character that YAML does not allow, U+001B."),
        ("bad\ufffe", "line 3: a character that YAML does not allow, U+FFFE."),
        ('"bad\\0name"', "metadata.name: has a character that no text of a job may have, U+0000. Remove it. (line 3)"),
        ('"bad\\ud800"', "metadata.name: has a character that no text of a job may have, U+D800."),
        ("!!int x", "the file has a value that cannot be read: invalid literal for int()"),
        ("!!timestamp x", "the file has a value that cannot be read: "),
        ("9" * 5000, "the file has a value that cannot be read: Exceeds the limit"),
        ("[" * 3000, "the file has a value that cannot be read: maximum recursion depth exceeded"),
    ],
    ids=range(9),
)
def test_text_that_no_job_can_contain_is_refused(file: Path, value: str, message: str):
    problems = problems_of(file, JOB.replace("{name: small}", f"{{name: {value}}}"))

    assert any(problem.startswith(message) for problem in problems), problems


def test_a_duplicate_key_is_refused_with_both_lines(file: Path):
    problems = problems_of(file, JOB + "    steps: 3\n")

    assert problems == ["spec.training.steps: is there twice, first on line 9. Keep one of them. (line 11)"]


def test_an_alias_that_contains_itself_is_refused(file: Path):
    problems = problems_of(file, JOB + "  verl: &loop {a: *loop}\n")

    assert problems == ["spec.verl.a: contains itself by an alias. Write out what it means."]


def test_an_override_replaces_a_field_with_or_without_spec_in_its_path(file: Path):
    job = load(file, JOB, "training.steps=7", "spec.training.seed=3", "metadata.name=other")

    assert (job.spec.training.steps, job.spec.training.seed, job.metadata.name) == (7, 3, "other")


def test_an_override_changes_one_of_several_fields_that_share_an_anchor(file: Path):
    resources = "  resources: {train: &g {accelerator: H100}, rollout: *g}\n"
    mode = ("training.mode=separate_async", "training.maxStaleness=1")

    job = load(file, JOB + resources, *mode, "resources.rollout.accelerator=A40")

    assert (job.spec.resources.train.accelerator, job.spec.resources.rollout.accelerator) == ("H100", "A40")


def test_duplicate_keys_in_an_override_are_refused(file: Path):
    (problem,) = problems_of(file, JOB, "training={steps: 1, steps: 2}")

    assert problem.startswith("--set training: '{steps: 1, steps: 2}' ")


def test_an_override_of_a_verl_setting_keeps_its_dots(file: Path):
    job = load(file, JOB, "verl.actor_rollout_ref.rollout.top_p=0.5")

    assert job.spec.verl == {"actor_rollout_ref.rollout.top_p": 0.5}


def test_an_override_can_remove_a_section(file: Path):
    job = load(file, JOB, "agent.memory=null", "agent.memory={textTurns: 3}")

    assert job.spec.agent.memory.text_turns == 3


@pytest.mark.parametrize("override", ["training.steps", "=3", "training..steps=3"])
def test_an_override_without_path_and_value_is_refused(file: Path, override: str):
    (problem,) = problems_of(file, JOB, override)

    assert "Write it as path=value" in problem


def test_an_invalid_override_is_reported_as_an_override(file: Path):
    problems = problems_of(file, JOB, "training.stepss=3", "training.steps.x=1", "agent.maxTurns=[")

    assert problems[0].startswith("--set spec.training.steps.x: leads into spec.training.steps")
    assert problems[1].startswith("--set agent.maxTurns: '[' line 1")
    assert problems[2] == "spec.training.stepss: 3 is no field of spec.training. Did you mean steps? (--set)"


def test_the_model_folder_must_hold_a_model(file: Path, tmp_path: Path):
    folder = tmp_path / "model"
    text = JOB.replace("warmStart: {}", f"path: {folder}").replace("compact", "cot")

    (missing,) = problems_of(file, text)
    folder.mkdir()
    (empty,) = problems_of(file, text)
    (folder / "config.json").touch()
    (without_tokenizer,) = problems_of(file, text)
    (folder / "tokenizer_config.json").touch()

    assert "is no folder on this machine" in missing
    assert "has no config.json" in empty
    assert "has no tokenizer_config.json" in without_tokenizer
    assert load(file, text).spec.model.path == str(folder)


HUB = JOB.replace("warmStart: {}", "path: owner/Small-1.5B").replace("compact", "cot")


def put_into_cache(cache: Path, *files: str) -> Path:
    """Put files of the model `owner/Small-1.5B` where huggingface_hub puts them."""
    stored = cache / "models--owner--Small-1.5B"
    folder = stored / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("abc")
    for name in files:
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_a_model_of_the_hub_is_taken_from_the_cache(file: Path, tmp_path: Path, monkeypatch, variable: str):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    below = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}[variable]
    folder = put_into_cache(tmp_path / below, "config.json", "tokenizer_config.json", "model.safetensors")

    job = load(file, HUB)

    assert local_folder(job.spec.model.path) == folder


@pytest.mark.parametrize("files", [(), ("config.json", "tokenizer_config.json")])
def test_a_model_of_the_hub_that_is_not_here_is_refused_offline_with_the_command_to_fetch_it(
    file: Path, tmp_path: Path, monkeypatch, files: tuple[str, ...]
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    put_into_cache(tmp_path, *files)

    (problem,) = problems_of(file, HUB)

    assert problem == (
        "spec.model.path: 'owner/Small-1.5B' is not in the cache of the Hugging Face hub on this machine. Fetch it "
        "with `hf download owner/Small-1.5B` where the network is, or unset HF_HUB_OFFLINE. (line 5)"
    )


def test_a_cached_model_of_which_a_part_is_missing_is_not_complete(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = put_into_cache(tmp_path, "config.json", "model-1-of-2.safetensors")
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    assert local_folder("owner/Small-1.5B") is None
    (folder / "model-2-of-2.safetensors").touch()
    assert local_folder("owner/Small-1.5B") == folder


def test_a_model_of_the_hub_may_be_downloaded_when_the_run_starts(file: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    assert load(file, HUB).spec.model.path == "owner/Small-1.5B"


def test_a_relative_path_into_a_folder_that_exists_is_no_name_of_the_hub(file: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()

    (problem,) = problems_of(file, HUB)

    assert "is no folder on this machine" in problem


def test_a_process_parses_its_job_once(file: Path):
    text = load(file).model_dump_json(by_alias=True)

    assert job_from_json(text) == load(file)
    assert job_from_json(text) is job_from_json(text)

import json
import sys
from datetime import date
from types import ModuleType

import pyarrow
import pytest
from pyarrow import parquet

from turnmill.core.errors import SettingsError
from turnmill.tasks import Answer, create_source
from turnmill.tasks.arithmetic import Arithmetic
from turnmill.tasks.rewards import last_boxed


def answer(last: str, responses: str | None = None) -> Answer:
    return Answer(last, last if responses is None else responses, last)


def test_the_seed_determines_the_sums():
    first, again, other = (create_source("arithmetic", seed=seed) for seed in (1, 1, 2))

    assert first.training(5) == again.training(5)
    assert [first.training(n) for n in range(5)] != [other.training(n) for n in range(5)]
    assert first.training(0) != first.validation(0)


@pytest.mark.parametrize("name", ["arithmetic", "calculator"])
def test_sums_of_validations_occur_neither_in_training_nor_in_demonstrations(name):
    asked = {create_source(name, seed=1).validation(number).messages[0]["content"] for number in range(300)}
    learning = create_source(name, seed=2)
    assert isinstance(learning, Arithmetic)

    learned = {learning.training(number).messages[0]["content"] for number in range(3000)}
    shown = {task.messages[0]["content"] for task, _ in learning.demonstrations(seed=0, count=3000)}

    assert len(asked) > 200
    assert not asked & (learned | shown)


def test_only_the_right_number_in_the_last_response_is_rewarded():
    source = create_source("arithmetic")
    task = source.training(0)

    assert source.reward(task, answer(f"answer:{task.truth}")) == 1.0
    assert source.reward(task, answer(f"answer:{task.truth + 1}")) == 0.0
    assert source.reward(task, answer("hm", f"answer:{task.truth}hm")) == 0.0


@pytest.mark.parametrize("name", ["arithmetic", "calculator"])
def test_some_demonstrations_call_the_tool_and_many_are_wrong(name):
    source = create_source(name)
    assert isinstance(source, Arithmetic)

    shown = list(source.demonstrations(seed=0, count=400))

    with_tool = [responses for _, responses in shown if len(responses) == 2]
    right = [task for task, responses in shown if responses[-1].response == f"answer:{task.truth}"]
    assert 110 < len(with_tool) < 170
    assert 110 < len(right) < 190
    assert with_tool[0][1].context.startswith(with_tool[0][0].response)


ROWS = [{"prompt": f"{n}+0", "reward_model": {"ground_truth": str(n)}, "extra_info": {"n": n}} for n in range(6)]


@pytest.fixture(params=["jsonl", "parquet"])
def file(request, tmp_path):
    path = tmp_path / f"tasks.{request.param}"
    if request.param == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return str(path)


def test_every_epoch_uses_all_tasks_in_a_new_order(file):
    source = create_source("dataset", {"path": file, "validationTasks": 2, "systemPrompt": "Add."})

    passes = [[source.training(4 * turn + n).truth for n in range(4)] for turn in range(3)]

    assert [sorted(each) for each in passes] == [["0", "1", "2", "3"]] * 3
    assert len({tuple(each) for each in passes}) > 1
    assert [source.validation(n).truth for n in range(2)] == ["4", "5"]
    assert source.training(0).messages[0] == {"role": "system", "content": "Add."}
    assert set(source.training(0).extra_info) == {"n"}


def test_a_task_may_contain_unicode_line_separators(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "a\u2028b\x85c"}\n', encoding="utf-8")

    assert create_source("dataset", {"path": str(path)}).training(0).messages[0]["content"] == "a\u2028b\x85c"


def test_a_line_that_is_not_json_is_refused_with_its_number(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "a"}\n\n{\n')

    with pytest.raises(SettingsError, match=r"tasks\.jsonl', line 3 is not valid JSON: "):
        create_source("dataset", {"path": str(path)})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tasks.jsonl", b"\xff\xfe", "cannot be read: .* Save it as UTF-8"),
        ("tasks.jsonl", b'{"prompt": "1?"}\0', "line 1 is not valid JSON"),
        ("tasks.jsonl", b"[" * 100_000, "line 1 is not valid JSON"),
        ("tasks.jsonl", b'"prompt"', "line 1 is not a JSON object"),
        ("tasks.parquet", b"not parquet", "cannot be read as Parquet"),
    ],
)
def test_a_file_that_holds_no_rows_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(SettingsError, match=message):
        create_source("dataset", {"path": str(tmp_path / name)})


@pytest.mark.parametrize("option", ["path", "validationPath"])
def test_data_that_is_not_json_is_refused_if_there_are_tools(file, tmp_path, option):
    path = tmp_path / "dates.parquet"
    rows = [{"prompt": f"{day}?", "extra_info": {"day": day}} for day in (None, date(2026, 1, 2))]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    create_source("dataset", {"path": file}).require_json()
    source = create_source("dataset", {"path": file, option: str(path)})

    with pytest.raises(SettingsError, match=r"of the task '2026-01-02\?' is not valid JSON: .* date is not JSON"):
        source.require_json()


@pytest.mark.parametrize(
    ("reward", "response_text", "expected"),
    [
        ("exact_match", " 4 ", 1.0),
        ("exact_match", "5", 0.0),
        ("boxed_match", "so \\boxed{4}", 1.0),
        ("math_verify", "so \\boxed{\\frac{8}{2}}", 1.0),
        ("math_verify", "so \\boxed{5}", 0.0),
    ],
)
def test_the_reward_option_selects_how_answers_are_compared(file, reward, response_text, expected):
    source = create_source("dataset", {"path": file, "reward": reward, "validationTasks": 2})

    assert source.reward(source.validation(0), answer(response_text)) == expected


@pytest.mark.feature("verl-tool", "several samples per validation task")
@pytest.mark.parametrize(
    ("reward", "response_text", "expected"),
    [
        ("exact_match", " 4 ", "4"),
        ("boxed_match", "so \\boxed{ 4 }", "4"),
        ("math_verify", "so \\boxed{4}", "4"),
        ("boxed_match", "no box", ""),
    ],
)
def test_samples_vote_for_what_the_reward_compares(file, reward, response_text, expected):
    source = create_source("dataset", {"path": file, "reward": reward, "validationTasks": 2})

    assert source.prediction(source.validation(0), answer(response_text)) == expected


def test_samples_vote_for_the_prediction_of_a_reward_of_verl(file, tmp_path):
    (tmp_path / "scores.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': 1.0, 'pred': solution_str[-1]}\n"
        "def number(**_):\n"
        "    return 1.0\n"
    )

    votes = []
    for name in ("score", "number"):
        source = create_source("dataset", {"path": file, "reward": f"verl:{tmp_path}/scores.py:{name}"})
        votes.append(source.prediction(source.training(0), answer("it is 7")))

    assert votes == ["7", None]


def test_sums_vote_for_the_number_of_the_answer():
    source = create_source("arithmetic", {})

    assert [source.prediction(source.validation(0), answer(text)) for text in ("answer:12", "12")] == ["12", ""]


def test_a_reward_can_be_a_user_defined_function(file, monkeypatch):
    module = ModuleType("my_rewards")
    module.half = lambda answer, truth, extra_info: 0.5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_rewards", module)

    source = create_source("dataset", {"path": file, "reward": "my_rewards:half"})

    assert source.reward(source.training(0), answer("")) == 0.5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("aritmetic", {}, "environment.name: there is no task source 'aritmetic'. Did you mean 'arithmetic'?"),
        ("dataset", {"path": "/nowhere.jsonl"}, "environment.options.path: '/nowhere.jsonl' is not a file."),
        ("dataset", {}, "environment.options.path: is missing. Add it: "),
        ("arithmetic", {"x": 1}, "environment.options.x: arithmetic has no such option."),
        ("json:loads", {}, "environment.name: 'json:loads' is"),
    ],
)
def test_unknown_sources_and_missing_files_are_refused(name, options, message):
    with pytest.raises(SettingsError) as caught:
        create_source(name, options)

    assert str(caught.value).startswith(message)


def test_an_unknown_reward_is_refused(file):
    with pytest.raises(SettingsError, match="'exact' is not a reward"):
        create_source("dataset", {"path": file, "reward": "exact"})


@pytest.mark.parametrize(
    ("text", "expression"),
    [("\\boxed{1} \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("none", None), ("\\boxed{1", None)],
)
def test_the_last_boxed_expression_is_taken(text, expression):
    assert last_boxed(text) == expression


def test_a_text_of_an_answer_is_made_once_and_only_if_it_is_read():
    made = []

    def text(name: str):
        return lambda: made.append(name) or name

    answer = Answer(text("last"), text("responses"), "whole")

    assert (answer.last, answer.last, answer.whole) == ("last", "last", "whole")
    assert made == ["last"]

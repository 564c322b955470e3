import json
import random

import pytest

from turnmill import environments
from turnmill.core.errors import SettingsError
from turnmill.environments.base import VALIDATION_SEEDS
from turnmill.environments.maths.environment import PROBLEM_SETS, Maths
from turnmill.tasks.mathematics import is_equivalent, last_number


def create(task: str | None = None, **options: object) -> Maths:
    environment = environments.create("maths", task, options=options)
    assert isinstance(environment, Maths)
    return environment


@pytest.fixture
def file(tmp_path):
    def write(*rows: dict[str, str], name: str = "problems.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 2,400", 2400),
        ("it is 12, no, 13.", 13),
        ("$35", 35),
        ("x = -4", -4),
        ("9-5", 5),
        ("1,234.50 dollars", 1234.5),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text_is_taken(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("11/12", "\\frac{11}{12}", True),
        ("(x+3)(x-3)", "(x-3)(x+3)", True),
        ("0.25", "\\frac{1}{4}", True),
        ("the answer is \\boxed{20}", "20", True),
        ("21", "20", False),
        ("", "20", False),
        ("20", "", False),
    ],
)
def test_expressions_are_compared_by_value(answer, truth, same):
    assert is_equivalent(answer, truth) is same


def test_an_expression_too_large_to_evaluate_is_not_equivalent():
    assert not is_equivalent("9^{9^{9^{9}}}", "20")


@pytest.mark.parametrize("task", PROBLEM_SETS)
def test_bundled_problems_are_solved_by_their_answers(task):
    environment = create(task)
    for seed in range(20):
        problem = environment.reset(seed)
        wrong = environment.step("-17")
        right = environment.step(environment._truth)

        assert problem
        assert (wrong.reward, wrong.terminated, wrong.observation) == (-0.1, False, "Incorrect. Please think again.")
        assert (right.reward, right.terminated, right.observation) == (10, True, "Correct!")


def test_a_seed_selects_the_same_row_as_in_grl(file):
    rows = [{"question": f"{n}?", "answer": f"#### {n}"} for n in range(100)]
    environment = create(path=file(*rows))

    assert [environment.reset(seed) for seed in range(20)] == [
        random.Random(seed).choice(rows)["question"] for seed in range(20)
    ]


def test_validations_use_the_problems_of_the_validation_path(file):
    training = file(*({"question": f"{n}?", "answer": f"{n}"} for n in range(20)))
    validation = file(*({"question": f"{n}!", "answer": f"{n}"} for n in range(20)), name="validation.jsonl")
    environment = create(path=training, validationPath=validation)

    assert {environment.reset(seed)[-1] for seed in (*range(20), VALIDATION_SEEDS - 1)} == {"!"}
    assert {environment.reset(VALIDATION_SEEDS + seed)[-1] for seed in range(20)} == {"?"}


def test_a_validation_path_requires_a_path(file):
    with pytest.raises(SettingsError, match=r"options\.validationPath: must be set together with"):
        create(validationPath=file({"question": "?", "answer": "1"}))


def test_the_solution_of_gsm8k_is_the_number_after_the_hashes(file):
    environment = create(path=file({"question": "?", "answer": "3*400 = 1200 and 34 more #### 1,234"}))
    environment.reset(0)

    assert environment.step("I get 1234").terminated
    assert environment.match_action("twelve") is None


def test_the_solution_of_aime_is_read_from_its_box(file):
    environment = create("aime24", path=file({"problem": "?", "solution": "\\boxed{204}"}))
    environment.reset(0)

    assert environment.step("204").terminated


def test_the_names_of_columns_can_be_set(file):
    environment = create("math500", path=file({"q": "1+1?", "a": "2"}), questionKey="q", answerKey="a")

    assert environment.reset(0) == "1+1?"
    assert environment.step("2").terminated


def test_a_missing_column_is_reported_with_the_existing_ones(file):
    with pytest.raises(
        SettingsError, match=r"questionKey: row 1 of path has no column 'question'. Its columns are q, answer"
    ):
        create(path=file({"q": "?", "answer": "1"}))


def test_a_column_missing_only_for_validation_is_reported_with_the_validation_path(file):
    training, validation = file({"question": "?", "answer": "1"}), file({"question": "?"}, name="validation.jsonl")

    with pytest.raises(SettingsError, match=r"answerKey: row 1 of validationPath has no column 'answer'"):
        create(path=training, validationPath=validation)


def test_an_episode_ends_after_its_last_answer():
    environment = create(maxSteps=2)
    environment.reset(0)

    assert not environment.step("-17").truncated
    assert environment.step("-17").truncated


def test_an_unknown_problem_set_is_refused_with_a_suggestion():
    with pytest.raises(SettingsError, match=r"no task 'math50'. Did you mean 'math500'"):
        create("math50")


def test_a_missing_answer_counts_as_wrong():
    environment = create()
    environment.reset(0)

    assert environment.step(environment.default_action).reward == -0.1

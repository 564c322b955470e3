import pytest

from turnmill.tools.assertions import split_assertion


@pytest.mark.parametrize(
    ("assertion", "expressions", "condition"),
    [
        ("assert f(1) == 2", ["f(1)"], "value_0 == 2"),
        ("  assert 2 == f(1), 'wrong'", ["f(1)"], "2 == value_0"),
        ("assert sorted(f([2, 1])) == [1, 2]", ["sorted(f([2, 1]))"], "value_0 == [1, 2]"),
        ("assert abs(f(1) - 2) < 1e-6", ["f(1)"], "abs(value_0 - 2) < 1e-06"),
        ("assert f(1) != 2", ["f(1)"], "value_0 != 2"),
        ("assert 0 < f(1) < g.h(2)[3] + 1", ["f(1)", "g.h(2)[3]"], "0 < value_0 < value_1 + 1"),
        ("assert not Solution().f(1)", ["Solution().f(1)"], "not value_0"),
        ("assert math.isclose(f(1), math.pi)", ["f(1)"], "math.isclose(value_0, math.pi)"),
        ("assert f(1) == 2 and f(2) is None", ["f(1)", "f(2)"], "value_0 == 2 and value_1 is None"),
        ("assert isinstance(f(1), int)", ["isinstance(f(1), int)"], "value_0"),
        ("assert f([x for x in range(3)]) == [x for x in range(3)]", ["f([x for x in range(3)])"],
         "value_0 == [x for x in range(3)]"),
    ],
)  # fmt: skip
def test_the_program_computes_values_and_the_judge_compares_them(
    assertion: str, expressions: list[str], condition: str
):
    split = split_assertion(assertion, "def f(x): ...")

    assert split is not None
    assert (list(split.expressions), split.condition) == (expressions, condition)


@pytest.mark.parametrize(
    "assertion",
    [
        "x = f(1)\nassert x == 2",
        "f(1)",
        "assert True",
        "assert 1 + 1 == 2",
        "assert f(1) == g(1)",
        "assert all(f(i) == i for i in range(3))",
        "assert (y := f(1)) and y > 2",
        "assert f(",
        "assert \0",
        "assert " + "(" * 500 + "f(1)" + ")" * 500,
        "assert " + "-" * 20000 + "f(1)",
        "",
    ],
)
def test_what_cannot_be_split_is_left_to_the_program(assertion: str):
    assert split_assertion(assertion, "def f(x): ...") is None


def test_a_program_may_define_a_function_with_the_name_of_a_built_in_one():
    split = split_assertion("assert sum([1, 2]) == 3", "def sum(xs): ...")

    assert split is not None
    assert split.expressions == ("sum([1, 2])",)
    assert split_assertion("assert sum([1, 2]) == 3", "def f(xs): ...") is None
    assert split_assertion("assert sum([1, 2]) == 3", "def sum(") is None


def test_a_function_that_replaces_a_built_in_one_does_not_judge():
    split = split_assertion("assert abs(f(1)) < 2", "def f(x): ...\ndef abs(x): return 0")

    assert split is not None
    assert split.condition == "abs(value_0) < 2"

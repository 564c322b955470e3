import pytest

from turnmill.cli.main import main
from turnmill.cli.serve_environment import environment_options
from turnmill.core.errors import SettingsError


def test_options_are_read_as_in_a_job_file():
    pairs = ["numDists=2", "size=[6, 6]", "view=words", "on=true", "name=a=b", "reset={a: 1}"]

    assert environment_options(pairs) == {
        "numDists": 2, "size": [6, 6], "view": "words", "on": True, "name": "a=b", "reset": {"a": 1}
    }  # fmt: skip


@pytest.mark.parametrize("pair", ["numDists", "=2", "size=[6", "size={a: 1, a: 2}"])
def test_an_option_that_cannot_be_read_is_named(pair: str):
    with pytest.raises(SettingsError, match="--set "):
        environment_options([pair])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["babyay"], "NAME: there is no environment 'babyay'. Did you mean 'babyai'?"),
        (["tetris", "--task", "x"], "--task: tetris has no task 'x'."),
        (["tetris", "--set", "widht=4"], "--set widht: tetris has no such option. Did you mean 'width'?"),
        (["support.environments:Hostile", "--set", "onMake=raises"], "cannot be created: ValueError: it hurts."),
        (["tetris", "--python", "/nowhere/python"], "/nowhere/python"),
        (["tetris", "--host", "192.0.2.1"], "cannot be served on --host 192.0.2.1"),
    ],
)
def test_a_server_that_cannot_start_says_why(capsys, arguments: list[str], problem: str):
    code = main(["serve-environment", "--port", "0", *arguments])

    assert code == 2
    assert problem in capsys.readouterr().err

"""The hash of code changes with what the code does, and with nothing else."""

from pathlib import Path

import pytest

from turnmill.core.code_hash import hash_code

CODE = "x = 1\n\ndef f():\n    return x\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.py").write_text(CODE)
    (tmp_path / "b.py").write_text("y = 2\n")
    return tmp_path


@pytest.mark.parametrize(
    "code",
    [
        '"""A module."""\n' + CODE,
        "# A comment.\nx = 1  # one\ndef f():\n\n\n    return (x)\n",
        'x = 1\n"""A field."""\n\ndef f():\n    """Return x."""\n    return x\n',
    ],
)
def test_comments_docstrings_and_layout_do_not_change_the_hash(folder, code):
    before = hash_code([folder])

    (folder / "inner" / "a.py").write_text(code)

    assert hash_code([folder]) == before


@pytest.mark.parametrize("code", [CODE.replace("1", "3"), CODE.replace("return", "yield"), ""])
def test_a_change_of_code_changes_the_hash(folder, code):
    before = hash_code([folder])

    (folder / "inner" / "a.py").write_text(code)

    assert hash_code([folder]) != before


def test_moving_code_to_another_file_changes_the_hash(folder):
    before = hash_code([folder])

    (folder / "b.py").rename(folder / "inner" / "b.py")

    assert hash_code([folder]) != before


def test_a_file_by_itself_is_hashed(folder):
    file = folder / "b.py"
    before = hash_code([file])

    file.write_text("y = 3\n")

    assert hash_code([file]) != before

import pytest

from turnmill.tools.sandboxed.shell_lines import join_lines


@pytest.mark.parametrize(
    ("block", "commands"),
    [
        ("a\n\nb", ["a", "b"]),
        ("for i in 1; do\necho\ndone\nb", ["for i in 1; do\necho\ndone", "b"]),
        ("cat <<E\nif\n\nE\nb", ["cat <<E\nif\n\nE", "b"]),
        ("cat <<A <<B\n1\nA\n2\nB\nb", ["cat <<A <<B\n1\nA\n2\nB", "b"]),
        ("a &&\nb", ["a &&\nb"]),
        ("f() {\na\n}", ["f() {\na\n}"]),
        ("a \\\nb", ["a \\\nb"]),
        ("a \\\\\nb", ["a \\\\", "b"]),
        ("echo done", ["echo done"]),
        ("if a\nb", ["if a", "b"]),
        ("fi\nb", ["fi", "b"]),
    ],
)
def test_lines_are_joined_as_bash_reads_them(block, commands):
    assert join_lines(block.split("\n")) == commands


def test_lines_that_never_form_a_command_are_not_joined():
    lines = ["if x"] * 2_000

    assert join_lines(lines) == lines

import pytest

from turnmill.core.errors import SandboxError
from turnmill.sandboxes.base import Command, Function, Limits, Python, SandboxTask
from turnmill.sandboxes.fork import check


def test_an_ordinary_task_passes():
    check(SandboxTask(Python("pass"), files={"a/b": b"", "...": b""}, folder="a"))


@pytest.mark.parametrize("path", ["/a", "..", "a/..", "a/../b", "", "\0"])
@pytest.mark.parametrize("field", ["files", "folder"])
def test_a_path_outside_of_the_workspace_is_refused(path, field):
    task = SandboxTask(Python(""), files={path: b""}) if field == "files" else SandboxTask(Python(""), folder=path)

    with pytest.raises(SandboxError, match="not inside the workspace"):
        check(task)


@pytest.mark.parametrize("program", [Command(()), Function("module", b""), Function("a:b:c", b"")])
def test_an_incomplete_program_is_refused(program):
    with pytest.raises(SandboxError):
        check(SandboxTask(program))


@pytest.mark.parametrize("more", [{"stdin": b"x"}, {"files": {"f": b""}}, {"folder": "f"}, {"keep_files": True}])
def test_a_persistent_task_sets_limits_and_nothing_else(more):
    function = Function("module:name", b"", persistent=True)
    check(SandboxTask(function, limits=Limits(seconds=1)))

    with pytest.raises(SandboxError, match="nothing else"):
        check(SandboxTask(function, **more))

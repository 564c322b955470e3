import pytest

from turnmill.core.errors import SandboxError
from turnmill.sandboxes.base import Command, Function, Limits, Python, Task
from turnmill.sandboxes.fork import check


def test_an_ordinary_task_passes():
    check(Task(Python("pass"), files={"a/b": b"", "...": b""}, folder="a"))


@pytest.mark.parametrize("path", ["/a", "..", "a/..", "a/../b", "", "\0"])
@pytest.mark.parametrize("place", ["files", "folder"])
def test_a_path_that_leads_out_is_refused(path, place):
    task = Task(Python(""), files={path: b""}) if place == "files" else Task(Python(""), folder=path)

    with pytest.raises(SandboxError, match="not inside the workspace"):
        check(task)


@pytest.mark.parametrize("program", [Command(()), Function("module", b""), Function("a:b:c", b"")])
def test_a_program_that_names_nothing_is_refused(program):
    with pytest.raises(SandboxError):
        check(Task(program))


@pytest.mark.parametrize("more", [{"stdin": b"x"}, {"files": {"f": b""}}, {"folder": "f"}, {"keep_files": True}])
def test_the_task_of_an_attendant_has_limits_and_nothing_else(more):
    function = Function("module:name", b"", attends=True)
    check(Task(function, limits=Limits(seconds=1)))

    with pytest.raises(SandboxError, match="nothing else"):
        check(Task(function, **more))

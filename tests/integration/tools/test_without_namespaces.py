"""Sessions in the sandbox of a pod that may not create namespaces, which refuses to set modes and times by path."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from turnmill.sandboxes.fork import ForkSandbox
from turnmill.testing.tool_calls import Dialogue, make_tool
from turnmill.tools.bash_terminal import UNCHANGED
from turnmill.tools.sandboxed import PRELOAD

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[ForkSandbox]:
    sandbox = ForkSandbox(preload=PRELOAD, namespaces=False)
    await sandbox.start()
    yield sandbox
    await sandbox.close()


async def test_a_shell_keeps_its_files_with_their_modes(sandbox: ForkSandbox):
    dialogue = Dialogue(make_tool("bash_terminal", sandbox))
    await dialogue.say("<bash>umask 077; echo data > f; mkdir -p d/e; ln -s f l; export A=1; cd d</bash>")

    observation = await dialogue.say("<bash>cat ../l; stat -c %a ../f e; echo $A</bash>")

    assert "user@bash-session:~/d$ cat ../l; stat -c %a ../f e; echo $A\ndata\n600\n700\n1\n" in observation


async def test_a_shell_that_stops_its_supervisor_is_ended_and_its_state_is_unchanged(sandbox: ForkSandbox):
    dialogue = Dialogue(make_tool("bash_terminal", sandbox, BASH_TIMEOUT_SECONDS="1"))
    await dialogue.say("<bash>echo x > kept</bash>")

    observation = await dialogue.say("<bash>rm kept; kill -STOP $PPID; sleep 30</bash>")

    assert UNCHANGED in observation
    assert "file/kept" in dialogue.state


async def test_only_changed_files_are_written(sandbox: ForkSandbox):
    dialogue = Dialogue(make_tool("bash_terminal", sandbox))
    await dialogue.say("<bash>echo a > a; echo b > b; mkdir d</bash>")

    await dialogue.say("<bash>echo more >> b</bash>")

    assert dialogue.result.change is not None
    assert set(dialogue.result.change.written) == {"file/b"}


async def test_a_python_session_keeps_variables_and_files(sandbox: ForkSandbox):
    dialogue = Dialogue(make_tool("ipython_code", sandbox))
    await dialogue.say("<python>x = [1]\nopen('f', 'w').write('data')</python>")

    assert "Out[2]: ([1], 'data')" in await dialogue.say("<python>x, open('f').read()</python>")


async def test_a_database_keeps_its_changes(sandbox: ForkSandbox, tmp_path):
    (tmp_path / "empty.sqlite").touch()
    dialogue = Dialogue(
        make_tool("sql", sandbox, SQL_DB_FOLDER=str(tmp_path)), {"db_path": str(tmp_path / "empty.sqlite")}
    )
    await dialogue.say("<sql>create table item(name text)</sql>")
    await dialogue.say("<sql>insert into item values ('pen')</sql>")

    assert "  0\npen" in await dialogue.say("<sql>select * from item</sql>")

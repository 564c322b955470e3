"""A tool server whose folder for temporary files is full: calls fail with a type, and work again when there is room."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server_process import NewServer
from turnmill.sandboxes import kernel

CALLS = {
    "python_code": "<python>open('f', 'w').write('x' * 100000); print(6 * 7)</python>",
    "ipython_code": "<python>open('f', 'w').write('x' * 100000); print(6 * 7)</python>",
    "bash_terminal": "<bash>head -c 100000 /dev/zero > f && echo $((6 * 7))</bash>",
}
BYTES = 2**27


@pytest.fixture
def small_tmp(contained: None, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    kernel.mount("tmpfs", str(folder), "tmpfs", 0, f"size={BYTES},mode=1777")
    yield folder
    kernel.unmount(str(folder))


def fill(folder: Path) -> Path:
    """Write into a folder until its disk is full."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(2**20)):
                pass
        except OSError:
            return folder / "ballast"
    raise AssertionError("the disk is not full")


@pytest.mark.parametrize("tool", CALLS)
def test_a_call_on_a_full_disk_fails_with_a_type_and_runs_when_there_is_room(
    contained: None, small_tmp: Path, new_server: NewServer, tool: str
):
    server = new_server("--tool_type", tool, environment={"TMPDIR": str(small_tmp)})
    assert "42" in str(server.observe(CALLS[tool], "before"))
    ballast = fill(small_tmp)

    answer = server.post(["full"], [CALLS[tool]], extra_fields=[{"call_id": "1"}]).json()

    # No failure of the disk is an observation.
    assert answer["cause"] == "sandbox"
    assert "0 MiB free, and a task may write" in str(answer)
    assert server.http.get("/health").status_code == 200
    ballast.unlink()
    answer = server.post(["full"], [CALLS[tool]], extra_fields=[{"call_id": "1"}]).json()
    assert "42" in str(answer["observations"])

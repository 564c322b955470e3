"""The end of an engine's actor with its core process, and its heartbeats."""

import subprocess
import sys

PROGRAM = """
from turnmill.training.verl import engine_server

class Core:
    looks = 0

    @property
    def errored(self):
        self.looks += 1
        print("look", self.looks, flush=True)
        return self.looks == 3

engine_server.CHECK_SECONDS = 0.0
engine_server.exit_after_death(Core())
print("still lives")
"""


def test_a_process_exits_when_its_core_has_died_and_not_before():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)

    assert ended.returncode == 1, ended.stderr
    # vLLM writes a line of its own before.
    assert ended.stdout.splitlines()[-3:] == ["look 1", "look 2", "look 3"]


BEATING = """
import asyncio, sys
from turnmill.observability.run_folder import RunFolder
from turnmill.training.verl.engine_server import beating

async def get_output():
    return "tokens"

folder = RunFolder(sys.argv[1])
assert folder.last_beat() is None
assert asyncio.run(beating(get_output, folder)()) == "tokens"
assert folder.last_beat() is not None
"""


def test_tokens_of_an_unfinished_response_are_progress(tmp_path):
    subprocess.run([sys.executable, "-c", BEATING, str(tmp_path)], timeout=300, check=True)

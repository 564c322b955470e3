import asyncio
import sys
from pathlib import Path

from turnmill.rollout.harness.program import MAX_OUTPUT_BYTES, Ended, run_program

KEPT_BYTES = 1024 * 1024


async def run(code: str, workspace: Path) -> Ended:
    return await run_program(
        [sys.executable, "-c", code],
        task={},
        variables={},
        workspace=workspace,
        timeout_seconds=60,
        stop=asyncio.Event(),
    )


async def test_of_a_long_output_the_last_mebibyte_is_kept(tmp_path: Path):
    ended = await run(f"print('x' * {2 * KEPT_BYTES}); print('{{\"reward\": 0.5}}')", tmp_path)

    assert (ended.how, ended.exit_code, ended.result) == ("exited", 0, {"reward": 0.5})
    assert len(ended.output) == MAX_OUTPUT_BYTES == KEPT_BYTES

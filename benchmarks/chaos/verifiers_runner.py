"""An evaluation by verifiers' own runner, by a Python that has it: TOOLS_URL MODEL_URL NUMBER RESULTS_FOLDER."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import verifiers as vf
from chaos.effects import TURNS, reward_of
from chaos.tool_client import call_tool
from datasets import Dataset

AT_ONCE = 16


class Counting(vf.StatefulToolEnv):  # type: ignore[misc]
    """A tool that is told which trajectory calls it."""

    def update_tool_args(self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: Any, **_: Any) -> Any:
        """Add the name of the trajectory, and the id that verifiers gives it."""
        return {**tool_args, "trajectory": state["answer"], "trajectory_id": state["trajectory_id"]}


def reward(prompt: Any, completion: Any, **_: Any) -> float:
    """Return the reward of all that was said."""
    return reward_of("".join(str(message.content) for message in (*prompt, *completion)))


async def main(tools_url: str, model_url: str, number: int, results: Path) -> None:
    """Evaluate."""

    async def count(number: int, trajectory: str, trajectory_id: str) -> str:
        """Count.

        Args:
            number: Of the call.
            trajectory: Its name.
            trajectory_id: Its id.
        """
        return await call_tool(tools_url, trajectory, number, f"{trajectory_id} {number}")

    names = [f"t{row // 16}.{row // 4}-{row % 4}" for row in range(number)]
    rows = Dataset.from_list([{"question": name, "answer": name} for name in names])
    environment = Counting(
        dataset=rows, eval_dataset=rows, max_turns=TURNS + 1, rubric=vf.Rubric(funcs=[reward]), env_id="counting"
    )
    environment.add_tool(count, args_to_skip=["trajectory", "trajectory_id"])
    os.environ["CHAOS_KEY"] = "none"
    await environment.evaluate(
        vf.ClientConfig(api_key_var="CHAOS_KEY", api_base_url=f"{model_url}/v1"),
        "tiny",
        num_examples=number,
        max_concurrent=AT_ONCE,
        results_path=results,
        save_results=True,
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))

"""Agents in environments for `rollout_cost.py`: FOLDER SYSTEM SIZE, see the harness.

The environment is a constant in the same process, where a run has one in a process of its own: what is measured is
turnmill's loop. `verlog` shows the model the last four turns and makes a row of each turn, `grl` has the whole
conversation in one row.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_cost_harness import ENDED, OBSERVATION_TOKENS, RESPONSE_TOKENS, Engine, Play, Played, Player, main
from rollout_cost_verl import loop_of, max_tokens, played_rows

INSTRUCTIONS = "Answer the question. Look pages up, one at a time."
WINDOW = 4

# ---- the systems ----


def verlog(engine: Engine, folder: Path, run_dir: Path) -> Play:
    from turnmill.rollout.verlog import slot
    from turnmill.rollout.verlog.episode_loop import EpisodeLoop
    from turnmill.testing.agent_loops import SAMPLING

    class Environment(Constant):
        """Answers with the text."""

        def __init__(self, *_: object, **__: object) -> None:
            super().__init__(engine.turns, (folder / "observation.txt").read_text())

    slot.EnvironmentProcess = Environment  # type: ignore[assignment, misc]
    loop = loop_of(EpisodeLoop, _verlog_job(engine.turns), engine, folder, run_dir)

    async def play(number: int) -> Played:
        return played_rows(await loop.run(SAMPLING, index=number, session_id=0, global_steps=1))

    return play


def grl(engine: Engine, folder: Path, run_dir: Path) -> Play:
    from turnmill.rollout.grl.loop import GrlLoop
    from turnmill.rollout.grl.rows import verl_rows
    from turnmill.testing.agent_loops import SAMPLING

    text = (folder / "observation.txt").read_text()
    loop = loop_of(GrlLoop, _grl_job(engine.turns), engine, folder, run_dir)
    loop.environment_of = lambda agent: Conversation(engine.turns, text)

    async def play(number: int) -> Played:
        return played_rows(verl_rows(await loop.run(SAMPLING, index=number, session_id=0, global_steps=1)))

    return play


PLAYERS = {"verlog": Player(ENDED, verlog), "grl": Player(ENDED, grl)}
"""What is measured, by name."""

# ---- the environment ----


class Constant:
    """An environment's process that answers with the same text, until there are enough turns."""

    def __init__(self, turns: int, text: str) -> None:
        from turnmill.environments.runtime.episode import ActionResult, ResetResult

        self._left, self._text = turns, text
        self._opening = ResetResult(text, INSTRUCTIONS, INSTRUCTIONS)
        self._result = ActionResult("look up", True, 0.0, False, False, text, INSTRUCTIONS, INSTRUCTIONS)

    async def reset(self, seed: int, *, next_seed: int | None = None) -> Any:
        """Begin."""
        return replace(self._opening, observation=self.observation())

    async def act(self, response: str) -> Any:
        """Take any response for an action."""
        self._left -= 1
        return replace(
            self._result, terminated=not self._left, observation=self.observation(response), remembered=response
        )

    async def close(self) -> None:
        """Do nothing."""

    def observation(self, response: str = "") -> str:
        """Return the text."""
        return self._text


class Conversation(Constant):
    """One in which an agent of GRL's keeps its conversation, all of which it hands over with every turn."""

    def __init__(self, turns: int, text: str) -> None:
        super().__init__(turns, text)
        self._messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": text}]

    def observation(self, response: str = "") -> str:
        """Return the agent's state as its process does."""
        from turnmill.environments.grl.agent_adapter import AgentView

        if response:
            self._messages += [{"role": "assistant", "content": response}, {"role": "user", "content": self._text}]
        view = AgentView(messages=self._messages, state=self._text, response=response, actions=["look up"])
        return view.model_dump_json()


# ---- jobs ----


def _verlog_job(turns: int) -> Any:
    from turnmill.testing.agent_loops import job_of

    agent = {"type": "verlog", "groupSize": 2, "maxTurns": turns, "prompt": "compact",
             "memory": {"textTurns": WINDOW, "thoughtTurns": WINDOW}, "maxResponseTokens": RESPONSE_TOKENS,
             "maxPromptTokens": 2 * (WINDOW + 1) * (RESPONSE_TOKENS + OBSERVATION_TOKENS)}  # fmt: skip
    return job_of(agent, {"name": "tictactoe"}, algorithm={"type": "gigpo"}, tasksPerStep=4)


def _grl_job(turns: int) -> Any:
    from turnmill.testing.agent_loops import job_of

    named = {"name": "constant", "agentType": "sokobanAgent", "agentConfig": {"maxTurns": turns}}
    agent = {"type": "grl", "agents": [named], "agentGroupNum": [2], "agentGroupSize": [2],
             "maxPromptLength": max_tokens(turns), "maxResponseLength": RESPONSE_TOKENS}  # fmt: skip
    return job_of(agent, None, algorithm={"type": "ppo"})


if __name__ == "__main__":
    main(PLAYERS)

"""The agent loop over whole episodes: groups that begin alike, and each turn a row of its own."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from turnmill.core.errors import EpisodeError
from turnmill.core.trajectory import Turn
from turnmill.rollout.failure import Failure
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.verlog.rows import TurnRow, turn_row
from turnmill.rollout.verlog.slot import EpisodePlan, Slot
from turnmill.rollout.verlog.turn_loop import TurnLoop


class EpisodeLoop(TurnLoop):
    """Plays each episode of a task from its beginning to its end, within one step."""

    async def run(  # type: ignore[override]
        self,
        sampling_params: dict[str, Any],
        *,
        index: int,
        session_id: int,
        global_steps: int,
        validate: bool = False,
        **_: Any,
    ) -> Failure | list[TurnRow]:
        """Play one episode: a row for each of its turns, or what ended it; one row for an episode of a validation."""
        position, sample, step = int(index), int(session_id), int(global_steps)
        if validate:
            return [_told_in_one(await self._validate(position, sampling_params, step))]
        spec = self.job.spec
        slot_index = position * spec.group_size + sample
        title = f"t{step}-{position}-{sample}"
        plan = EpisodePlan.of_task(
            spec.training.seed, spec.task_number(step, position), step=step, slot=slot_index, title=title
        )
        slot = Slot(slot_index, spec, plan)
        turns: list[Turn] = []
        try:
            return await self._play(slot, turns, sampling_params, step)
        except EpisodeError as error:
            self._record_failure(slot, step, error, turns=turns)
            return Failure(title, error.cause, str(error), len(turns), slot.timing.elapsed_seconds())
        finally:
            await slot.close()

    async def _play(self, slot: Slot, turns: list[Turn], sampling_params: dict[str, Any], step: int) -> list[TurnRow]:
        rows: list[TurnRow] = []
        while not (turns and turns[-1].done):
            with slot.timing.measure("tools"):
                await slot.ready()
            state = hashlib.blake2b(slot.state_key.encode(), digest_size=8).hexdigest()
            turn = await self._turn(slot, sampling_params)
            turns.append(turn)
            row = turn_row(turn, slot=slot, time=len(rows))
            row.extra_fields |= {"state": state, "trajectory": {}}
            rows.append(row)
            slot.finish_turn(keep=True)
        self.log.append(self._turn_records(slot, turns, step))
        # The last row alone tells of the whole: others would carry all of its tokens once more.
        rows[-1].extra_fields["trajectory"] = _told(slot, turns)
        return rows


def _told(slot: Slot, turns: Sequence[Turn]) -> Mapping[str, Any]:
    """What is told of an episode, as of any other trajectory."""
    return {
        "name": slot.episode_name,
        "reward": sum(turn.reward for turn in turns),
        "success": turns[-1].reward > 0,
        "stop_reason": slot.stop_reason(turns[-1]),
        "num_rows": len(turns),
        "own_scores": True,
        "turn_rows": True,
        "sampled": b"".join(pack_tokens(turn.response_ids) for turn in turns),
        "seconds": slot.timing.elapsed_seconds(),
        "figures": {
            "num_turns": float(len(turns)),
            "valid_action": sum(turn.valid for turn in turns) / len(turns),
            "plan_length": sum(turn.metrics["plan_length"] for turn in turns) / len(turns),
            "backtrack_length": sum(turn.metrics["backtrack_length"] for turn in turns) / len(turns),
        },
    }


def _told_in_one(row: TurnRow) -> TurnRow:
    """The row that stands for an episode of a validation, which is told as trajectories are."""
    facts = row.facts
    row.extra_fields["trajectory"] = {
        "reward": facts.episode_reward,
        "success": facts.reward > 0,
        "figures": {"num_turns": facts.episode_length, "valid_action": facts.valid, "failures": facts.failures},
    }
    return row

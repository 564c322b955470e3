"""Agent loop over whole episodes, in groups with the same initial state; each turn is a row of its own."""

import hashlib

from turnmill.core.errors import EpisodeError, OtherReplayError
from turnmill.core.trajectory import EpisodeFailure, Turn
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.verl_types import SamplingParams
from turnmill.rollout.verlog.journaled import JournaledTurns
from turnmill.rollout.verlog.rows import TurnRow, episode_summary, turn_row
from turnmill.rollout.verlog.slot import EpisodePlan, Slot
from turnmill.rollout.verlog.turn_loop import TurnLoop


class EpisodeLoop(TurnLoop):
    """Plays each episode as a whole within one step."""

    async def run(  # type: ignore[override]
        self,
        sampling_params: SamplingParams,
        *,
        index: int,
        session_id: int,
        global_steps: int,
        validate: bool = False,
        **_: object,
    ) -> EpisodeFailure | list[TurnRow]:
        """Play one episode; return a row for each turn, or its failure; in a validation, one row."""
        position, sample, step = int(index), int(session_id), int(global_steps)
        if validate:
            return [await self.validate(position, sampling_params, step)]
        spec = self.job.spec
        slot_index = position * spec.group_size + sample
        name = EpisodeId(step, position, sample, validate=False)
        plan = EpisodePlan.of_task(
            spec.training.seed, spec.task_number(step, position), step=step, slot=slot_index, episode_name=str(name)
        )
        slot, journaled = Slot(slot_index, spec, plan), JournaledTurns(name, self.journal)
        turns: list[Turn] = []
        try:
            return await self._play(slot, turns, journaled, sampling_params, step)
        except EpisodeError as error:
            await journaled.drop(error)
            self.log.append([*self._turn_records(slot, turns, step), self._failure_record(slot, step, error)])
            return EpisodeFailure(str(name), error.cause, str(error), len(turns), slot.timing.elapsed_seconds())
        finally:
            await slot.close()

    async def _play(
        self, slot: Slot, turns: list[Turn], journaled: JournaledTurns, sampling_params: SamplingParams, step: int
    ) -> list[TurnRow]:
        rows: list[TurnRow] = []
        states: list[str] = []
        start = slot.state()
        await journaled.open()
        while not (turns and turns[-1].done):
            with slot.timing.measure("tools"):
                await slot.ensure_episode()
            states.append(hashlib.blake2b(slot.state_key.encode(), digest_size=8).hexdigest())
            try:
                turn = await self._next_turn(slot, journaled, sampling_params)
            except OtherReplayError as error:
                for of_turns in (turns, rows, states):
                    of_turns.clear()
                await self._start_over(slot, start, journaled, error)
                continue
            turns.append(turn)
            rows.append(turn_row(turn, slot=slot))
            slot.finish_turn(keep_episode=True)
        await journaled.finish()
        self.log.append(self._turn_records(slot, turns, step))
        rows[-1].episode_summary = episode_summary(turns, slot=slot, row_states=states)
        return rows

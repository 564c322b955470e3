"""The agent loop over turns: each turn of an environment is a row of its own (Verlog's turn-level abstraction)."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from turnmill.core.errors import EnvironmentFailedError, EpisodeError, OtherReplayError, RunFailedError
from turnmill.core.trajectory import Turn
from turnmill.environments.rendering import write_gif
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnPosition, TurnRecord
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.generation import generate, policy_versions, sampling_seed
from turnmill.rollout.journal import Journal, NoJournal
from turnmill.rollout.timing import Timing
from turnmill.rollout.token_integrity import token_checksum
from turnmill.rollout.verl_classes import AgentLoopBase, TokenOutput
from turnmill.rollout.verl_types import SamplingParams
from turnmill.rollout.verlog.journaled import JournaledTurns, follows, is_result, with_prompt
from turnmill.rollout.verlog.rows import TurnRow, bootstrap_row, episode_summary, turn_row
from turnmill.rollout.verlog.slot import EpisodePlan, Slot, SlotState

MAX_FAILURES_IN_A_ROW = 3

log = logging.getLogger(__name__)


class TurnLoop(AgentLoopBase):
    """Plays turns in environment slots whose episodes continue from step to step."""

    def __init__(
        self, *args: object, job: AgentTrainingJob, run_dir: Path, journal: Journal | None = None, **kwargs: object
    ) -> None:
        super().__init__(*args, **kwargs)
        self.job = job
        self.folder = RunFolder(run_dir)
        self.log = TrajectoryLog(self.folder, sample_share=job.spec.tracking.recorded_share)
        self.journal: Journal = journal or NoJournal()
        self.slots: dict[int, Slot] = {}

    @property
    def turns_per_segment(self) -> int:
        """Turns that a slot plays in each step."""
        return self.job.spec.turns_per_step // self.job.spec.environment.count

    async def run(
        self, sampling_params: SamplingParams, *, slot: int, global_steps: int, validate: bool = False, **_: object
    ) -> list[TurnRow]:
        """Play one segment of a slot's episodes, or one whole episode of a validation; return the rows."""
        if validate:
            return [await self.validate(int(slot), sampling_params, int(global_steps))]
        return await self._play_segment(self.slot(int(slot)), sampling_params, int(global_steps))

    def slot(self, index: int) -> Slot:
        """Return the slot with that index; its environment starts with its first turn."""
        if index not in self.slots:
            self.slots[index] = Slot(index, self.job.spec, EpisodePlan.training(self.job.spec.training.seed, index))
        return self.slots[index]

    async def close(self) -> None:
        """End every environment process, and close the journal."""
        await asyncio.gather(*(slot.close() for slot in self.slots.values()), return_exceptions=True)
        await self.journal.close()

    async def _play_segment(self, slot: Slot, sampling_params: SamplingParams, step: int) -> list[TurnRow]:
        """Return the rows of a fixed number of turns, and the bootstrap row.

        Turns of a failed episode are dropped and replaced by others.
        """
        async with slot.lock:
            records: list[TurnRecord] = []
            try:
                return await self._play_turns(slot, records, sampling_params, step)
            finally:
                # Not before: another process would log what it replays once more.
                self.log.append(records)

    async def _play_turns(
        self, slot: Slot, records: list[TurnRecord], sampling_params: SamplingParams, step: int
    ) -> list[TurnRow]:
        start = slot.state()
        slot.timing = Timing()
        # Batches of a critic's warm-up have one step.
        turns = JournaledTurns(EpisodeId(step, slot.index, start.turns_played, validate=False), self.journal)
        await turns.open()
        rows: list[TurnRow] = []
        failures: list[str] = []
        failed_in_a_row = 0
        while len(rows) < self.turns_per_segment:
            try:
                turn = await self._next_turn(slot, turns, sampling_params)
            except OtherReplayError as error:
                rows.clear()
                records.clear()
                await self._start_over(slot, start, turns, error)
                continue
            except EpisodeError as error:
                # The rows of this episode are dropped with it; those of earlier episodes stay.
                rows = rows[: max(0, len(rows) - slot.turn)]
                failures.append(error.cause)
                failed_in_a_row += 1
                records.append(self._failure_record(slot, step, error))
                await turns.drop(error)
                _end_run_after_too_many(failed_in_a_row, error)
                await slot.drop_episode()
                continue
            failed_in_a_row = 0 if turn.done else failed_in_a_row
            rows.append(turn_row(turn, slot=slot))
            records.append(self._turn_record(slot, turn, step, slot.turn))
            slot.finish_turn()
        last_prompt_ids = await self._bootstrap_prompt(slot, records, step, failures)
        await turns.finish()
        slot.segment_ends[step] = slot.state()
        return [
            *rows,
            bootstrap_row(
                last_prompt_ids,
                self.tokenizer.eos_token_id,
                failure_causes=failures,
                seconds=slot.timing.elapsed_seconds(),
            ),
        ]

    async def _bootstrap_prompt(
        self, slot: Slot, records: list[TurnRecord], step: int, failures: list[str]
    ) -> list[int]:
        """Return the prompt after the last turn, for which the critic estimates the value of later rewards."""
        failed_in_a_row = 0
        while True:
            try:
                with slot.timing.measure("tools"):
                    await slot.ensure_episode()
                return await self._prompt_ids(slot)
            except EnvironmentFailedError as error:
                failures.append(error.cause)
                failed_in_a_row += 1
                records.append(self._failure_record(slot, step, error))
                _end_run_after_too_many(failed_in_a_row, error)
                await slot.drop_episode()

    async def _next_turn(self, slot: Slot, turns: JournaledTurns, sampling_params: SamplingParams) -> Turn:
        """Return the next turn: one that the journal has is replayed, any other is played and kept there.

        Raises OtherReplayError if the environment answers otherwise than it did.
        """
        if (kept := turns.next_kept()) is not None:
            return await self._replay_turn(slot, kept)
        turn = await self._play_turn(slot, sampling_params)
        await turns.append(turn)
        return turn

    async def _replay_turn(self, slot: Slot, kept: Turn) -> Turn:
        with slot.timing.measure("tools"):
            await slot.ensure_episode()
            prompt_ids = await self._prompt_ids(slot)
            if not follows(kept, prompt_ids):
                raise OtherReplayError(f"{slot.episode_name}: turn {slot.turn} has another prompt.")
            if not is_result(kept, await slot.act(kept.response_text)):
                raise OtherReplayError(f"{slot.episode_name}: turn {slot.turn} has another result.")
        self.folder.beat()
        return with_prompt(kept, prompt_ids)

    @staticmethod
    async def _start_over(slot: Slot, start: SlotState, turns: JournaledTurns, error: OtherReplayError) -> None:
        """Return to the state before the turns in the journal, which are played anew."""
        log.warning("Turns of the journal are played anew", extra={"turns": turns.name, "what": str(error)})
        await turns.drop()
        await slot.rewind(start)

    async def _play_turn(self, slot: Slot, sampling_params: SamplingParams) -> Turn:
        asked_at, before = time.time(), slot.timing.elapsed_seconds()
        with slot.timing.measure("tools"):
            await slot.ensure_episode()
        prompt_ids = await self._prompt_ids(slot)
        with slot.timing.measure("generation"):
            output = await self._generate(slot, prompt_ids, sampling_params)
        oldest_version, newest_version = policy_versions(output)
        text = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        with slot.timing.measure("tools"):
            result = await slot.act(text)
        self.folder.beat()
        return Turn(
            prompt_ids=tuple(prompt_ids),
            response_ids=tuple(output.token_ids),
            log_probs=tuple(output.log_probs or ()),
            response_text=text,
            observation=result.observation,
            action=result.action,
            valid=result.valid,
            reward=result.reward,
            done=result.done,
            policy_version=newest_version,
            metrics={
                **result.info,
                "plan_length": result.plan_length,
                "backtrack_length": result.backtrack_length,
                "min_policy_version": oldest_version,
                "sampled": token_checksum(output.token_ids),
            },
            asked_at=asked_at,
            seconds=slot.timing.elapsed_since(before),
        )

    async def _prompt_ids(self, slot: Slot) -> list[int]:
        return list(await self.ct_build_initial_tokens(slot.messages()))

    async def _generate(self, slot: Slot, prompt_ids: list[int], sampling_params: SamplingParams) -> TokenOutput:
        training = self.job.spec.training
        return await generate(
            self.server_manager,
            slot.trajectory,
            prompt_ids,
            {**sampling_params, "max_tokens": self.job.spec.verlog.max_response_tokens},
            seed=sampling_seed(training.seed, slot.plan.sampling_stream, slot.index, slot.turns_played),
            timeout_seconds=training.timeouts.request_seconds,
        )

    async def validate(self, index: int, sampling_params: SamplingParams, step: int, *, sample: int = 0) -> TurnRow:
        """Play one whole episode; return its last turn as a row with the summary of the episode.

        Samples of an episode have the same environment seed, and sampling seeds of their own.
        """
        validation = self.job.spec.training.validation
        slot = Slot(index, self.job.spec, EpisodePlan.validation(validation.seed, index, step, sample))
        try:
            return await self._validation_episode(slot, sampling_params, step)
        finally:
            await slot.close()

    async def _validation_episode(self, slot: Slot, sampling_params: SamplingParams, step: int) -> TurnRow:
        failures: list[str] = []
        turns: list[Turn] = []
        start = slot.state()
        journaled = JournaledTurns(EpisodeId(step, slot.index, slot.plan.sample, validate=True), self.journal)
        await journaled.open()
        while not (turns and turns[-1].done):
            try:
                turns.append(await self._next_turn(slot, journaled, sampling_params))
            except OtherReplayError as error:
                turns = []
                await self._start_over(slot, start, journaled, error)
                continue
            except EpisodeError as error:
                failures.append(error.cause)
                failed = [*self._turn_records(slot, turns, step), self._failure_record(slot, step, error)]
                self.log.append(failed, validation=True)
                await journaled.drop(error)
                _end_run_after_too_many(len(failures), error)
                await slot.drop_episode(repeat=True)
                turns = []
                continue
            slot.finish_turn(keep_episode=True)
        await journaled.finish()
        self.log.append(self._turn_records(slot, turns, step), validation=True)
        if slot.index < self.job.spec.training.validation.render_episodes:
            await self._render(slot, step)
        row = turn_row(turns[-1], slot=slot)
        row.episode_summary = episode_summary(turns, slot=slot, num_failures=len(failures))
        return row

    async def _render(self, slot: Slot, step: int) -> None:
        path = self.folder.episodes / f"validation-{step:06d}-{slot.index}.gif"
        try:
            await asyncio.to_thread(write_gif, await slot.frames(), path)
        except EnvironmentFailedError as error:
            # A picture that cannot be drawn must not fail the episode.
            log.warning("Episode not drawn", extra={"episode": slot.episode_name, "what": str(error)})

    def _turn_records(self, slot: Slot, turns: Sequence[Turn], step: int) -> list[TurnRecord]:
        return [self._turn_record(slot, turn, step, number) for number, turn in enumerate(turns)]

    def _turn_record(self, slot: Slot, turn: Turn, step: int, number: int) -> TurnRecord:
        record = TurnRecord.of(turn, self._position(slot, number, step))
        return replace(record, prompt=self.tokenizer.decode(turn.prompt_ids), stop_reason=slot.stop_reason(turn))

    def _failure_record(self, slot: Slot, step: int, error: EpisodeError) -> TurnRecord:
        return TurnRecord.of_failure(error.cause, str(error), self._position(slot, slot.turn, step))

    def _position(self, slot: Slot, number: int, step: int) -> TurnPosition:
        environment_name = self.job.spec.environment.label if number == 0 else ""
        return TurnPosition(slot.episode_name, slot.index, number, step, environment_name, slot.seed)


def _end_run_after_too_many(failed_in_a_row: int, error: EpisodeError) -> None:
    if failed_in_a_row >= MAX_FAILURES_IN_A_ROW:
        raise RunFailedError(f"{failed_in_a_row} episodes in a row failed; the last: {error}", error.cause) from error

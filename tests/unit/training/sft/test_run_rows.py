from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chat_tokenizers import byte_level_tokenizer
from turnmill.core.errors import SettingsError
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord
from turnmill.training.sft.run_rows import chosen_episodes, require_vocabulary, trajectory_rows
from turnmill.training.sft.tokens import TokenRow
from turnmill.training.vocabulary import save_vocabulary

PLACE = "model.fineTune.fromRun"


def turn(number: int, response: tuple[int, ...], prompt: tuple[int, ...] = (), **fields: Any) -> TurnRecord:
    given = {"episode": "e", "reward": 0.0} | fields
    return TurnRecord(
        environment=0, turn=number, step=1, policy_version=0, prompt="", response="", action="",
        prompt_ids=prompt, response_ids=response, **given,
    )  # fmt: skip


def end(number: int, response: tuple[int, ...], prompt: tuple[int, ...] = (), **fields: Any) -> TurnRecord:
    return turn(number, response, prompt, **({"reward": 1.0, "done": True, "stop_reason": "completed"} | fields))


def make_run(folder: Path, *turns: TurnRecord, validation: bool = False, **agent: Any) -> Path:
    run = RunFolder(folder)
    run.create()
    run.write_job(yaml.safe_dump({"spec": {"agent": agent}}))
    TrajectoryLog(run).append(turns, validation=validation)
    return folder


def rows_of(run: Path) -> list[TokenRow]:
    return list(trajectory_rows(run, chosen_episodes(run, 1.0, PLACE)))


def test_a_trajectory_with_tools_is_one_row_whose_responses_are_learned(tmp_path: Path):
    run = make_run(
        tmp_path, turn(0, (3, 4), (1, 2), observation_ids=(5,)), end(1, (6,), observation_ids=(7,)), type="tool"
    )

    assert rows_of(run) == [TokenRow((1, 2, 3, 4, 5, 6), (0, 0, 1, 1, 0, 1))]


def test_a_tool_that_is_called_before_the_first_response_is_part_of_the_context(tmp_path: Path):
    run = make_run(tmp_path, turn(0, (), (1, 2), observation_ids=(3,)), end(1, (4,)), type="tool")

    assert rows_of(run) == [TokenRow((1, 2, 3, 4), (0, 0, 0, 1))]


def test_turns_with_prompts_of_their_own_are_rows_of_their_own(tmp_path: Path):
    run = make_run(tmp_path, turn(0, (3,), (1, 2)), end(1, (5,), (4,)), type="verlog")

    assert rows_of(run) == [TokenRow((1, 2, 3), (0, 0, 1)), TokenRow((4, 5), (0, 1))]


def test_branches_share_their_prefix_and_learn_each_response_once(tmp_path: Path):
    run = make_run(
        tmp_path,
        turn(0, (2,), (1,)),
        turn(1, (4,), (3,)),
        turn(2, (6,), (5,), parent=0),
        turn(3, (8,), (7,), parent=-1),
        turn(4, (9,), (9,), parent=-2),
        end(5, (11,), (10,), parent=1),
        type="harness",
    )

    assert sorted(rows_of(run), key=len_of) == sorted(
        [
            TokenRow((1, 2, 3, 4, 10, 11), (0, 1, 0, 1, 0, 1)),
            TokenRow((1, 2, 5, 6), (0, 0, 0, 1)),
            TokenRow((7, 8), (0, 1)),
        ],
        key=len_of,
    )


def len_of(row: TokenRow) -> int:
    return len(row.ids)


def test_only_whole_trajectories_of_training_with_enough_reward_are_chosen(tmp_path: Path):
    run = make_run(
        tmp_path,
        end(0, (1,), (1,), episode="good"),
        end(0, (1,), (1,), episode="poor", reward=0.5),
        end(0, (1,), (1,), episode="long", stop_reason="max_turns"),
        end(0, (1,), (1,), episode="failed", stop_reason="failed", failed_cause="sandbox"),
        end(0, (1,), (1,), episode="seen", images=("a.png",)),
        turn(0, (1,), (1,), episode="unfinished", reward=1.0),
        type="tool",
    )
    TrajectoryLog(RunFolder(run)).append([end(0, (1,), (1,), episode="validation")], validation=True)

    assert [episode.name for episode in chosen_episodes(run, 1.0, PLACE)] == ["good", "long"]


@pytest.mark.parametrize(
    ("turns", "agent", "reason"),
    [
        (None, {}, "is no folder of a run"),
        ([], {}, "has no trajectories of training"),
        ([end(0, (1,), reward=0.25)], {}, "has no trajectory with the reward 1: the best has 0.25"),
        ([end(0, (1,))], {"useInferenceChatTemplate": True}, "is of an agent with useInferenceChatTemplate"),
    ],
)
def test_a_run_that_nothing_is_learned_from_is_refused(
    tmp_path: Path, turns: list[TurnRecord] | None, agent: dict[str, Any], reason: str
):
    run = tmp_path / "run" if turns is None else make_run(tmp_path / "run", *turns, **agent)

    with pytest.raises(SettingsError, match=f"^{PLACE}: '{run}' {reason}"):
        chosen_episodes(run, 1.0, PLACE)


def test_tokens_of_another_vocabulary_are_refused(tmp_path: Path):
    tokenizer = byte_level_tokenizer()
    run = make_run(tmp_path)
    save_vocabulary(tokenizer, RunFolder(run))

    require_vocabulary(run, tokenizer, PLACE)
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(SettingsError, match="another vocabulary"):
        require_vocabulary(run, tokenizer, PLACE)

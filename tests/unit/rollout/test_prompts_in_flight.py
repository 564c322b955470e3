"""What another worker plays in place of one that has died."""

from typing import Any

import numpy as np
from tensordict import TensorDict
from verl.utils import tensordict_utils

from turnmill.rollout.prompts_in_flight import MAX_TRIES, PromptsInFlight
from turnmill.rollout.worker import EndedPrompt


def batch(*uids: str, step: int = 3, validation: bool = False) -> TensorDict:
    made = tensordict_utils.get_tensordict({"uid": np.array(uids, dtype=object), "index": list(range(len(uids)))})
    tensordict_utils.assign_non_tensor_data(made, "global_steps", step)
    if validation:
        tensordict_utils.assign_non_tensor_data(made, "validate", True)
    return made


def tag(status: str) -> dict[str, Any]:
    return {"is_prompt": True, "status": status, "global_steps": 3}


def in_flight(*batches: tuple[int, TensorDict]) -> PromptsInFlight:
    made = PromptsInFlight()
    for worker, prompts in batches:
        made.add(worker, prompts)
    return made


def uids(batches: list[TensorDict]) -> list[list[str]]:
    return [list(each["uid"]) for each in batches]


def test_what_the_dead_worker_had_not_ended_is_sent_again_in_the_batches_of_before():
    prompts = in_flight((0, batch("a", "b", "c")), (1, batch("d")), (0, batch("e", "f")))
    prompts.end([EndedPrompt("b", 3, validation=False)])
    statuses = {"train": {uid: tag("running") for uid in "acef"} | {"d": tag("pending")}}

    assert prompts.take_ended(0, statuses) == []
    again = prompts.send_again(0)

    assert uids(again) == [["a", "c"], ["e", "f"]]
    assert [int(each["global_steps"]) for each in again] == [3, 3]


def test_a_prompt_that_has_ended_without_a_report_counts_as_ended_and_is_not_sent_again():
    prompts = in_flight((0, batch("finished", "failed", "taken", "open")))
    statuses = {"train": {"finished": tag("finished"), "failed": tag("failure"), "open": tag("running")}}

    ended = prompts.take_ended(0, statuses)

    assert [prompt.uid for prompt in ended] == ["finished", "failed", "taken"]
    assert {(prompt.step, prompt.validation) for prompt in ended} == {(3, False)}
    assert uids(prompts.send_again(0)) == [["open"]]


def test_prompts_of_a_validation_are_looked_up_in_its_partition():
    prompts = in_flight((0, batch("a", validation=True)))

    assert prompts.take_ended(0, {"val": {"a": tag("running")}}) == []
    (ended,) = prompts.take_ended(0, {"train": {"a": tag("running")}, "val": {"a": tag("finished")}})

    assert ended.validation


def test_a_prompt_is_sent_so_many_times_and_not_once_more():
    prompts = in_flight((0, batch("a")), (1, batch("b")))

    for _ in range(MAX_TRIES - 1):
        assert not prompts.is_exhausted(0)
        prompts.send_again(0)

    assert prompts.is_exhausted(0)
    assert not prompts.is_exhausted(1)


def test_rows_of_prompts_that_are_played_again_are_found_and_others_are_not():
    prompts = in_flight((0, batch("a", "b")), (1, batch("c")))
    row = {"status": "success"}
    statuses = {"train": {"a": tag("running"), "a_0_0": row, "a_1_0": row, "c_0_0": row, "ab_0_0": row}, "val": {}}

    assert prompts.rows_of(0, statuses) == {"train": ["a_0_0", "a_1_0"]}


def test_prompts_that_were_sent_in_another_way_are_told():
    prompts = in_flight((0, batch("a")))
    statuses = {
        "train": {"a": tag("running"), "b": tag("pending"), "c": tag("finished"), "b_0_0": {"status": "success"}}
    }

    assert prompts.unknown(statuses) == ["b"]

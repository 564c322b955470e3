"""Prompts that agent loop workers play, so that another can play those of a worker that dies."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDict

from turnmill.rollout.worker import EndedPrompt

MAX_TRIES = 8
"""How often a prompt is sent: one whose worker dies each time may be the cause. Workers may die for other reasons,
several times in a step, and a new one takes seconds where a new attempt takes minutes."""

PARTITIONS = {False: "train", True: "val"}
"""The queue's partition of prompts, by whether they belong to a validation."""

Statuses = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Tags of the TransferQueue by partition and key."""


@dataclass(slots=True)
class _Sent:
    worker: int
    batch: TensorDict
    position: int
    """Row of the batch in which it was sent."""

    prompt: EndedPrompt
    """What the worker reports at its end."""

    tries: int = 1


class PromptsInFlight:
    """Prompts that were sent to workers, and whose ends have not been reported."""

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._sent

    def add(self, worker: int, batch: TensorDict) -> None:
        """Remember that a batch is sent to a worker."""
        step = int(batch["global_steps"])
        validation = "validate" in batch and bool(batch["validate"])
        for position, uid in enumerate(batch["uid"]):
            self._sent[uid] = _Sent(worker, batch, position, EndedPrompt(uid, step, validation))

    def end(self, ended: Sequence[EndedPrompt]) -> None:
        """Forget prompts that have ended."""
        for prompt in ended:
            self._sent.pop(prompt.uid, None)

    def take_ended(self, worker: int, statuses: Statuses) -> list[EndedPrompt]:
        """Forget and return a worker's prompts that have ended without a report.

        The queue has their end, or the trainer has taken them out of it already.
        """
        ended = [
            sent.prompt for sent in self._sent.values() if sent.worker == worker and not _is_open(statuses, sent.prompt)
        ]
        self.end(ended)
        return ended

    def send_again(self, worker: int) -> list[TensorDict]:
        """Return what a worker has been sent and has not ended, in the batches of before, and count the try."""
        positions: dict[int, list[int]] = defaultdict(list)
        batches: dict[int, TensorDict] = {}
        for sent in self._of(worker):
            sent.tries += 1
            positions[id(sent.batch)].append(sent.position)
            batches[id(sent.batch)] = sent.batch
        return [batches[key][chosen] for key, chosen in positions.items()]

    def has_any(self, worker: int) -> bool:
        """Return whether the worker has been sent prompts that have not ended."""
        return any(True for _ in self._of(worker))

    def is_exhausted(self, worker: int) -> bool:
        """Return whether a prompt of the worker has been sent as often as may be."""
        return any(sent.tries >= MAX_TRIES for sent in self._of(worker))

    def rows_of(self, worker: int, statuses: Statuses) -> dict[str, list[str]]:
        """Return the keys of rows, by partition, that the worker has put into the queue for prompts in flight."""
        uids = {sent.prompt.uid for sent in self._of(worker)}
        return {
            partition: keys
            for partition, tags in statuses.items()
            if (keys := [key for key, tag in tags.items() if not tag.get("is_prompt") and key.split("_")[0] in uids])
        }

    def unknown(self, statuses: Statuses) -> Collection[str]:
        """Return the prompts that the queue has as not ended, and that were not sent by way of this object."""
        return [
            key
            for tags in statuses.values()
            for key, tag in tags.items()
            if tag.get("is_prompt") and tag["status"] in OPEN and key not in self
        ]

    def _of(self, worker: int) -> Iterator[_Sent]:
        return (sent for sent in self._sent.values() if sent.worker == worker)


OPEN = ("pending", "running")
"""Statuses of prompts in verl's queue that have not ended."""


def _is_open(statuses: Statuses, prompt: EndedPrompt) -> bool:
    tag = statuses.get(PARTITIONS[prompt.validation], {}).get(prompt.uid)
    return tag is not None and tag["status"] in OPEN

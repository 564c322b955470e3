"""Generations and their answers as turns of the journal, and back."""

import json
import time
from dataclasses import dataclass

from turnmill.core.trajectory import Turn
from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.engine import Sample
from turnmill.gateway.messages import JsonObject, digest, message_key, reasoning_place
from turnmill.gateway.places import Place
from turnmill.gateway.rendering import ChatRenderer
from turnmill.gateway.tree import BranchReason, Generation, Opening, Tree


@dataclass(frozen=True, slots=True)
class Recorded:
    """A generation with its answer and the digest of its request."""

    generation: Generation
    answer: Answer
    digest: str


def turn_of(
    request: AnswerRequest,
    place: Place,
    sample: Sample,
    answer: Answer,
    *,
    number: int,
    asked_at: float,
    renderer: ChatRenderer,
) -> Turn:
    """Return the turn that records a generation; its observation holds the answer and the place in the tree."""
    oldest, newest = sample.policy_versions
    record = {
        "digest": request.digest,
        "asked": place.asked,
        "answered": digest(place.asked, message_key(answer.message)),
        "opening": [place.opening.tools, place.opening.system, place.opening.first],
        "branch": place.reason,
        "message": answer.message,
        "finish_reason": answer.finish_reason,
        "stop": answer.stop,
        "added_text": place.added_text,
        "pictures": place.pictures,
    }
    return Turn(
        prompt_ids=place.given_ids,
        response_ids=sample.token_ids,
        log_probs=sample.log_probs,
        prompt_text=renderer.text_of(place.given_ids, special=True),
        response_text=renderer.text_of(sample.token_ids, special=True),
        observation=json.dumps(record),
        policy_version=newest,
        asked_at=asked_at,
        seconds={"generation": round(max(0.0, time.time() - asked_at), 6)},
        metrics={
            "number": number,
            "parent": -1 if place.parent is None else place.parent,
            "context": len(place.prompt_ids),
            "oldest_version": oldest,
        },
    )


def branch_of(turn: Turn) -> BranchReason:
    """Return why a recorded turn branched; empty if it did not."""
    reason: BranchReason = json.loads(turn.observation)["branch"]
    return reason


def read_turn(turn: Turn, tree: Tree) -> Recorded:
    """Return what a turn records, which is the next generation of the tree."""
    record: JsonObject = json.loads(turn.observation)
    parent = None if turn.metrics["parent"] < 0 else int(turn.metrics["parent"])
    before = tree.generations[parent] if parent is not None else None
    reasoning = reasoning_place(record["message"]) or (before.reasoning if before is not None else "")
    text = ""
    if record["added_text"] is not None:
        text = (before.text if before is not None else "") + record["added_text"] + record["message"]["content"]
    generation = Generation(
        number=len(tree.generations),
        parent=parent,
        given_ids=turn.prompt_ids,
        response_ids=turn.response_ids,
        log_probs=turn.log_probs,
        asked=record["asked"],
        answered=record["answered"],
        opening=Opening(*record["opening"]),
        reason=record["branch"],
        reasoning=reasoning,
        text=text,
        # Records of before have none.
        pictures=tuple(record.get("pictures", ())),
    )
    answer = Answer(
        record["message"],
        record["finish_reason"],
        int(turn.metrics["context"]),
        turn.response_ids,
        turn.log_probs,
        record["stop"],
    )
    return Recorded(generation, answer, record["digest"])

"""Where a request stands in the tree of its trajectory, and the tokens that it adds there."""

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from turnmill.gateway.answers import AnswerRequest
from turnmill.gateway.messages import HistoryKeys, Message, ReasoningPlace, digest, message_key, pictures_in, start_key
from turnmill.gateway.rendering import ChatRenderer, ContinuationError
from turnmill.gateway.tree import BranchReason, Opening, TokenArray, Tree

KIND_OF_TEXT = "text"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands in the tree."""

    parent: int | None
    given_ids: tuple[int, ...]
    """What the request adds to its parent's tokens."""

    prompt_ids: TokenArray
    asked: str
    """Key of the conversation that is to be answered."""

    opening: Opening
    reason: BranchReason
    added_text: str | None = None
    """Of a completion of plain text: what the prompt adds to the parent's text."""

    pictures: tuple[str, ...] = ()
    """Digests of the pictures whose placeholders are among what it adds."""


def request_keys(request: AnswerRequest, history: HistoryKeys) -> list[str]:
    """Return the keys of the beginnings of a conversation; of a text only that of the whole."""
    if request.text is not None:
        return [digest(KIND_OF_TEXT, request.text)]
    return history.of(start_key(request.tools, request.template), request.messages)


def find_place(
    request: AnswerRequest, keys: Sequence[str], tree: Tree, renderer: ChatRenderer, *, end_ids: Collection[int]
) -> Place:
    """Return where a request stands; only what follows a recorded answer is rendered and tokenized.

    Raises RequestError if the chat template refuses the messages.
    """
    if request.text is not None:
        return _place_of_text(request.text, keys[-1], tree, renderer)
    opening = _opening(request, keys[0])
    parent, num_known = tree.continued_by(keys)
    added = request.messages[num_known:]
    rewritten = any(message["role"] == "assistant" for message in added)
    reason = tree.branch_reason(parent, opening, rewritten=rewritten)
    if parent is not None:
        context = tree.context_ids(parent)
        try:
            given = _continuation(
                request,
                added,
                renderer,
                last_id=context[-1],
                end_ids=end_ids,
                reasoning=tree.generations[parent].reasoning,
            )
        except ContinuationError:
            reason = "template"
        else:
            prompt_ids, pictures = context + array("I", given), _digests(added)
            return Place(parent, tuple(given), prompt_ids, keys[-1], opening, reason, pictures=pictures)
    prompt = renderer.opening(request.messages, request.tools, request.template)
    pictures = _digests(request.messages)
    return Place(None, tuple(prompt), array("I", prompt), keys[-1], opening, reason, pictures=pictures)


def _digests(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(picture.digest for picture in pictures_in(messages))


def _continuation(
    request: AnswerRequest,
    added: Sequence[Message],
    renderer: ChatRenderer,
    *,
    last_id: int,
    end_ids: Collection[int],
    reasoning: ReasoningPlace,
) -> Sequence[int]:
    if not added and last_id not in end_ids:
        # An answer that its token limit cut goes on.
        return ()
    return renderer.continuation(added, request.tools, request.template, last_id=last_id, reasoning=reasoning)


def _place_of_text(text: str, key: str, tree: Tree, renderer: ChatRenderer) -> Place:
    parent, length = tree.continued_by_text(text)
    given = renderer.tokenize(text[length:])
    opening = Opening(KIND_OF_TEXT, "", digest(text[:256]))
    reason = tree.branch_reason(parent, opening, rewritten=False)
    prompt = tree.context_ids(parent) + array("I", given)
    return Place(parent, tuple(given), prompt, key, opening, reason, text[length:])


def _opening(request: AnswerRequest, tools_key: str) -> Opening:
    system = "".join(message_key(message) for message in request.messages if message["role"] == "system")
    first = next((message_key(message) for message in request.messages if message["role"] == "user"), "")
    return Opening(tools_key, digest(system), digest(first))

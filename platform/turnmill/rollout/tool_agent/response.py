"""Responses of the policy: tokens, text, and the action parsed from it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnmill.core.trajectory import Turn
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.rollout.texts import text_decoder, text_encoder
from turnmill.rollout.tokens import Tokens
from turnmill.rollout.tool_agent.observations import Observation, ObservationTokenizer
from turnmill.rollout.tool_agent.replies import ToolReply
from turnmill.rollout.tool_agent.stop_tokens import find_action
from turnmill.rollout.verl_types import Tokenizer


@dataclass(frozen=True, slots=True)
class Response:
    """One generation of the policy: tokens, text, and the action parsed from it."""

    tokens: Tokens
    text: str
    action: str | None
    appended_ids: tuple[int, ...] = ()
    """Tokens of a stop token that the policy did not generate; `tokens` ends with them."""

    policy_versions: tuple[int, int] = (0, 0)
    """Oldest and newest version of the policy that generated it."""

    truncated: bool = False
    """True if the token limit ended it."""

    generated: bool = True
    """False if a tool is called before the first response, so that the policy generated nothing."""

    asked_at: float = 0.0
    """Start of the generation, in seconds since 1970."""

    seconds: float = 0.0
    """Seconds that the generation took."""

    @classmethod
    def from_turn(cls, turn: Turn) -> "Response":
        """Return the response of a turn in the journal."""
        appended_ids = turn.observation_ids[: int(turn.metrics.get("num_appended", 0))]
        return cls(
            Tokens.sampled(turn.response_ids, turn.log_probs) + Tokens.given(appended_ids),
            turn.response_text,
            turn.action or None,
            appended_ids,
            (int(turn.metrics.get("oldest_version", turn.policy_version)), turn.policy_version),
            truncated=bool(turn.metrics.get("cut_off")),
            generated=has_response(turn),
            asked_at=turn.asked_at,
            seconds=turn.seconds.get("generation", 0.0),
        )

    def as_turn(
        self,
        *,
        prompt_ids: Sequence[int] = (),
        answer: ToolReply | None = None,
        observation: Observation | None = None,
        tool_seconds: float = 0.0,
        done: bool = False,
        unanswered: bool = False,
    ) -> Turn:
        """Return the turn of this response; `answer` is the reply of the tool that it called."""
        observation = observation or Observation()
        num_sampled = len(self.tokens) - len(self.appended_ids)
        return Turn(
            prompt_ids=tuple(prompt_ids),
            response_ids=self.tokens.ids[:num_sampled],
            log_probs=self.tokens.log_probs[:num_sampled],
            observation_ids=(*self.appended_ids, *observation.ids),
            images=observation.images,
            response_text=self.text,
            observation=answer.text if answer else "",
            action=self.action or "",
            valid=answer.valid if answer else True,
            reward=(answer.reward or 0.0) if answer else 0.0,
            done=done,
            policy_version=self.policy_versions[1],
            unanswered=unanswered,
            metrics={
                "num_appended": len(self.appended_ids),
                "oldest_version": self.policy_versions[0],
                "called": answer is not None,
                "cut_off": self.truncated,
                "spoken": self.generated,
            },
            asked_at=self.asked_at,
            seconds={"generation": self.seconds} | ({"tools": round(tool_seconds, 6)} if answer else {}),
            tool_version=answer.version if answer else "",
        )


def has_response(turn: Turn) -> bool:
    """Return True if the policy generated a response in this turn, even an empty one."""
    return bool(turn.metrics.get("spoken", True))


class ResponseParser:
    """Finds the end of a response and the action in it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        agent: ToolAgent,
        *,
        stop_tokens: Sequence[str],
        observation_tokenizer: ObservationTokenizer,
    ) -> None:
        self._tokenizer = tokenizer
        self._decode, self._encode = text_decoder(tokenizer), text_encoder(tokenizer)
        self._agent = agent
        self._stop_tokens = tuple(stop_tokens)
        self._observation_tokenizer = observation_tokenizer

    def length_to_stop(self, ids: Sequence[int]) -> int:
        """Return the number of tokens up to the first stop token, which an interrupted engine may exceed."""

        def has_stop_token(length: int) -> bool:
            text = self._decode(ids[:length], skip_special_tokens=True)
            return any(stop in text for stop in self._stop_tokens)

        # Most responses end with their stop token, so this is looked at first.
        if not has_stop_token(len(ids) - 1):
            return len(ids)
        return bisect_left(range(len(ids)), True, key=has_stop_token)

    def find_action(self, text: str) -> str | None:
        """Return the action in a response; None if there is none."""
        if self._stop_tokens:
            return find_action(text, self._stop_tokens)
        return self.without_turn_end(text) if self._agent.enable_mtrl else None

    def without_turn_end(self, text: str) -> str:
        """Return a response's text up to the end of its turn of the chat."""
        text = text.partition(self._agent.turn_end_token)[0]
        end = self._tokenizer.eos_token
        return text.removesuffix(end) if end else text

    def is_empty(self, text: str) -> bool:
        """Return whether a response has no text before the end of its turn."""
        return not self.without_turn_end(text).strip()

    def force_action(self, response: Response) -> Response:
        """Return a response as an action: up to the end of the turn, with the first stop token after it."""
        ids = response.tokens.ids
        turn_end_ids = self._observation_tokenizer.ids_of(self._agent.turn_end_token)
        end_ids = {*turn_end_ids, self._tokenizer.eos_token_id}
        length = next((position for position, token in enumerate(ids) if token in end_ids), len(ids))
        tokens = response.tokens[:length]
        text = self._decode(tokens.ids, skip_special_tokens=False)
        stop = self._stop_tokens[0] if self._stop_tokens else ""
        appended_ids = self._observation_tokenizer.ids_of(stop)
        return replace(
            response,
            tokens=tokens + Tokens.given(appended_ids),
            text=text,
            action=text + stop,
            appended_ids=appended_ids,
        )

    def retokenize(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the tokenizer's encoding of a response's text."""
        text = self._decode(ids, skip_special_tokens=False)
        return tuple(self._encode(text))

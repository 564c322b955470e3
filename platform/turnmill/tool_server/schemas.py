"""Bodies of requests and responses."""

import re
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from turnmill.tool_server.calls import AFTER_VERSION, CALL_ID, IS_LAST_STEP, Action
from turnmill.tool_server.tool_set import FINISH

MAX_CALL_ID_CHARACTERS = 512

MAX_ACTIONS = 4096
"""Actions of one request: more would keep the worker's event loop busy for longer than renewals of claims may wait."""

VERSION = re.compile(r"[0-9]{1,16} .{0,512}", re.DOTALL)

T = TypeVar("T")


class ApiModel(BaseModel):
    """A JSON object; unknown keys are ignored."""

    model_config = ConfigDict(use_attribute_docstrings=True, protected_namespaces=())


class ActionRequest(ApiModel):
    """Actions of many trajectories."""

    trajectory_ids: list[str] = Field(min_length=1, max_length=MAX_ACTIONS)
    """Id of each action's trajectory."""

    actions: list[str] = Field(min_length=1, max_length=MAX_ACTIONS)
    """Texts of the agents, one per trajectory."""

    extra_fields: list[dict[str, object]] | None = Field(default=None, max_length=MAX_ACTIONS)
    """Data for the tool, one object per action; a repeated call with the same `call_id` gets the recorded result.

    With `after_version`, one of the `versions` of the trajectory's last reply, a call fails with `lost_write` if the
    store has lost that version.
    """

    finish: list[bool] | None = Field(default=None, max_length=MAX_ACTIONS)
    """True for trajectories that have ended: no tool is called, and their state is deleted."""

    is_last_step: list[bool] | None = Field(default=None, max_length=MAX_ACTIONS)
    """True for trajectories that end with this action: their state is deleted after it."""

    @field_validator("actions")
    @classmethod
    def _one_action_each(cls, actions: list[str], info: ValidationInfo) -> list[str]:
        return _of_length(actions, "actions", info)

    @field_validator("extra_fields")
    @classmethod
    def _one_object_each(
        cls, extra_fields: list[dict[str, object]] | None, info: ValidationInfo
    ) -> list[dict[str, object]] | None:
        for extra in extra_fields or ():
            version = extra.get(AFTER_VERSION) or ""
            if version and not (isinstance(version, str) and VERSION.fullmatch(version)):
                raise ValueError("extra_fields after_version must be one of the versions that a reply has")
            call_id = extra.get(CALL_ID)
            if call_id is None or isinstance(call_id, int):
                continue
            if not isinstance(call_id, str) or len(call_id) > MAX_CALL_ID_CHARACTERS:
                raise ValueError(f"extra_fields call_id must be text of at most {MAX_CALL_ID_CHARACTERS} characters")
        return extra_fields if extra_fields is None else _of_length(extra_fields, "extra_fields", info)

    def to_actions(self) -> list[Action]:
        """Return the actions, with `finish` and `is_last_step` as extra fields unless the first action has them."""
        extras = self.extra_fields or [{} for _ in self.trajectory_ids]
        for name, values in ((FINISH, self.finish), (IS_LAST_STEP, self.is_last_step)):
            if values is not None and name not in extras[0]:
                # A list that is too short leaves the other items unchanged; surplus values are ignored.
                for extra, value in zip(extras, values, strict=False):
                    extra[name] = value
        items = zip(self.trajectory_ids, self.actions, extras, strict=True)
        return [Action(trajectory_id, text, extra) for trajectory_id, text, extra in items]


def _of_length(values: list[T], name: str, info: ValidationInfo) -> list[T]:
    trajectory_ids = info.data.get("trajectory_ids")
    if trajectory_ids and len(values) != len(trajectory_ids):
        raise ValueError(f"Length of {name} must match trajectory_ids")
    return values


class ObservationResponse(ApiModel):
    """Results of tools, in the order of the request."""

    observations: list[str | dict[str, object]]
    """Text, or an object with the text under `obs`."""

    dones: list[bool]
    """True for trajectories that the tool ends."""

    valids: list[bool]
    """True for actions that a tool accepted."""

    versions: list[str]
    """Versions of the trajectories after the calls, for `after_version`; empty for calls that are not recorded, and for
    those of tools without state."""

    processing_time_ms: float
    """Milliseconds spent on the calls."""

    queue_time_ms: float
    """Milliseconds spent waiting before them, and by them for the sandbox."""


class Failure(ApiModel):
    """Infrastructure failed: there is no observation, and the same request may be repeated."""

    detail: str
    """A sentence on the failure."""

    cause: str
    """Cause in one word, from a closed set."""


class Detail(ApiModel):
    """Reason why a request was not answered."""

    detail: object
    """A sentence, or a list of errors in the body."""


class Health(ApiModel):
    """The server is alive."""

    status: Literal["healthy"] = "healthy"
    concurrent_requests: int
    """Requests that this worker executes."""

    thread_pool_size: int
    active_tasks: int
    """Requests that this worker executes or has queued."""

    max_concurrent: int
    tools: list[str]
    """Tools in the order in which they are matched, `finish` last."""

    uptime_seconds: float
    call_ids: Literal[True] = True
    """A call with a `call_id` takes effect once, so that clients may repeat it."""

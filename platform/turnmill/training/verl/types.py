"""Types of verl's untyped objects: metrics, tags of rows, and the managers of a trainer."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from ray.actor import ActorHandle
    from verl.single_controller.ray import RayWorkerGroup
    from verl.workers.rollout.replica import RolloutReplica

Client = TypeVar("Client")

Metrics: TypeAlias = dict[str, float]
"""Metrics of a step, by name; verl's methods add to them."""

Tag: TypeAlias = Mapping[str, object]
"""Tags of a row in verl's queue, in addition to its columns."""

Row: TypeAlias = dict[str, object]
"""One row of a data set, as verl collates it."""


class ServerManager(Protocol):
    """verl's `LLMServerManager`: starts engines and distributes requests to them."""

    rollout_replica_class: type["RolloutReplica"]
    rollout_config: "DictConfig"
    model_config: "DictConfig"
    global_load_balancer: "ActorHandle"
    server_addresses: Sequence[str]
    server_handles: Sequence["ActorHandle"]

    def get_client(self, client_cls: type[Client]) -> Client: ...


class WeightManager(Protocol):
    """verl's `CheckpointEngineManager`: it transfers weights from the trainer to engines."""

    backend: str
    actor_wg: "RayWorkerGroup"
    replicas: Sequence["RolloutReplica"]

    def add_replicas(self, replicas: Sequence["RolloutReplica"]) -> None: ...

    def remove_replicas(self, replicas: Sequence["RolloutReplica"]) -> None: ...

    def update_weights(self, global_steps: int) -> None: ...

    def sleep_replicas(self) -> None: ...

    def abort_replicas(self) -> None: ...

    def resume_generation_replicas(self) -> None: ...


class Tracking(Protocol):
    """verl's `Tracking`: the loggers that a job names."""

    def log(self, data: Mapping[str, object], step: int, backend: object = None) -> None: ...


class Tokenizer(Protocol):
    """Methods of transformers' tokenizers that this package uses."""

    eos_token_id: int

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...

    def batch_decode(self, sequences: list[list[int]]) -> list[str]: ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]: ...

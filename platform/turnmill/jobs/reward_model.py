"""Settings of a second model, which gives rewards."""

from typing import Annotated

from pydantic import Field

from turnmill.jobs.settings import FilePath, Settings, Word


class RewardModelSettings(Settings):
    """A model that the run serves beside the policy, as a judge that writes verdicts or as a model that gives scores.

    Its GPUs are its own in every mode of training.
    """

    path: FilePath
    """Folder of a Hugging Face model and its tokenizer, or its name on the hub, as for `spec.model`."""

    replicas: int = Field(default=1, ge=1, le=64)
    """Servers, each with GPUs of its own and all of the model."""

    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs of a server, all in one machine, which share every layer."""

    accelerator: Word | None = None
    """GPU type, for example `A40`; left out, any. Ignored on one machine."""

    arguments: Annotated[tuple[Word, ...], Field(strict=False, max_length=64)] = ()
    """Further arguments of `vllm serve`, for example `[--max-model-len, "8192"]`."""

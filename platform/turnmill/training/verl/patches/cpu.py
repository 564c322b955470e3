"""What verl 0.9.1 leaves no plug-in point for; every patch says what it is for and has a test that it is needed."""

from typing import Any


def apply() -> None:
    """Patch this process; harmless when done twice."""
    _name_one_backend_per_device()
    _load_value_heads_without_flash_attention()


def _name_one_backend_per_device() -> None:
    """verl 0.9.1 names the backend "cpu:gloo,cpu:gloo" where the device is the CPU; torch refuses the repetition."""
    import verl.utils.distributed as distributed

    original = distributed.initialize_global_process_group_ray

    def initialize(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return original(timeout_second, backend or "cpu:gloo")

    if not getattr(original, "is_patched", False):
        initialize.is_patched = True  # type: ignore[attr-defined]
        distributed.initialize_global_process_group_ray = initialize


def _load_value_heads_without_flash_attention() -> None:
    """verl 0.9.1 loads critics with flash_attention_2, whatever the configuration says."""
    import verl.utils.model as model

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=getattr(model_config, "_attn_implementation", None) or "sdpa",
            trust_remote_code=trust_remote_code,
        )

    model.load_valuehead_model = load_valuehead_model


apply()

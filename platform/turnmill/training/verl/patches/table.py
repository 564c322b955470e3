"""All patches, and their table in docs/development.md: `python -m turnmill.training.verl.patches.table`."""

from turnmill.training.verl.patches import (
    Patch,
    actor_class_ids,
    gloo_backend,
    linear_weights,
    no_pictures,
    pinned_memory,
    position_rows,
    queue_controller,
    queue_decoding,
    value_head_attention,
    vision_attention,
    weight_sockets,
    worker_setup,
)

ALL: dict[str, Patch] = {
    module.__name__.rpartition(".")[2]: module.PATCH
    for module in (
        gloo_backend,
        value_head_attention,
        pinned_memory,
        weight_sockets,
        queue_controller,
        queue_decoding,
        actor_class_ids,
        worker_setup,
        linear_weights,
        position_rows,
        no_pictures,
        vision_attention,
    )
}
"""Patches by the names of their modules."""


def markdown() -> str:
    """Return the table of patches for docs/development.md."""
    lines = ["| patch | replaces | so that | because | made for | upstream |", "| --- | --- | --- | --- | --- | --- |"]
    for name, patch in ALL.items():
        upstream = f"[line]({patch.source})" + (f", [issue]({patch.issue})" if patch.issue else "")
        cells = (f"`{name}`", f"`{patch.target}`", patch.change, patch.reason, f"{patch.distribution} {patch.version}")
        lines.append(f"| {' | '.join((*cells, upstream))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())

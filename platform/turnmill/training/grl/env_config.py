"""`env_config` of GRL's own agents, by the names that its environments have here."""

from collections.abc import Mapping

UNREAD: Mapping[str, tuple[str, ...]] = {
    "blocksworldAgent": ("max_steps",),
    "tetrisAgent": ("max_steps",),
}
"""Settings that stand in GRL's files, and that its environments do not read."""

CHOSEN_BY_NOBODY: Mapping[str, object] = {
    "dataset_size": "small",
    "filter_goals": None,
    "human_goals": False,
    "limit_goals": -1,
    "num_products": None,
    "observation_mode": "text",
    "server": None,
    "show_attrs": False,
}
"""Values in GRL's files for WebShop that are its defaults; a shop here has neither of these settings."""

MATHS = {"dataset_path": "path"}
NAMES: Mapping[str, Mapping[str, str]] = {
    "blocksworldAgent": {"render_mode": "view"},
    "birdAgent": {"dataset_path": "path", "db_root": "databases", "step_timeout_seconds": "queryTimeoutSeconds"},
    **{f"{name}Agent": MATHS for name in ("aime24", "aime25", "amc23", "gsm8k", "math500", "minervamath")},
}
"""Settings that have another name here."""


def here(agent_type: str, env_config: Mapping[str, object]) -> dict[str, object]:
    """Return an agent's `env_config` by the names of its environment here; of other agents all of it."""
    kept = {name: value for name, value in env_config.items() if name not in UNREAD.get(agent_type, ())}
    names = NAMES.get(agent_type, {})
    if agent_type in ("sokobanAgent", "tetrisAgent") and kept.get("render_mode") == "text":
        # Pictures are no observations here.
        del kept["render_mode"]
    if names is MATHS and kept.get("split") == "train":
        # A file is one split.
        del kept["split"]
    if agent_type == "webshopAgent":
        kept = {name: value for name, value in kept.items() if not _is_default(name, value)}
    return {names.get(name, name): value for name, value in kept.items()}


def _is_default(name: str, value: object) -> bool:
    # YAML reads None as a text.
    return name in CHOSEN_BY_NOBODY and (None if value == "None" else value) == CHOSEN_BY_NOBODY[name]

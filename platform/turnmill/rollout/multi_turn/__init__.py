"""verl's multi-turn rollout: its agent loops and tools, with failures, seeds and a journal around them."""

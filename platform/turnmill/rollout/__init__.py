"""The agent loops: policy and environment, turn by turn."""

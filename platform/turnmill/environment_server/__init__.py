"""The environment server: an environment for others to train on, over OpenEnv's protocol."""

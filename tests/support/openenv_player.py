"""Plays episodes with OpenEnv's own client: a program for an interpreter with the package `openenv`.

It reads JSON from stdin, `{"url": ..., "episodes": [{"seed": ..., "actions": [...]}, ...]}`, and writes what it saw.
"""

import json
import sys

from openenv.core.generic_client import GenericEnvClient


def main() -> None:
    """Play the episodes in one session."""
    request = json.load(sys.stdin)
    played = []
    with GenericEnvClient(base_url=request["url"]).sync() as client:
        for episode in request["episodes"]:
            results = [client.reset(seed=episode["seed"])]
            results += [client.step({"action": action}) for action in episode["actions"]]
            played.append([[each.observation["text"], each.reward, each.done] for each in results])
    json.dump(played, sys.stdout)


if __name__ == "__main__":
    main()

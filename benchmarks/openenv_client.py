"""OpenEnv's own clients for `openenv_environments.py`, run by a Python that has `openenv`.

PYTHON openenv_client.py < {"url": ..., "tools": ..., "episodes": [{"reset": ..., "actions": [...]}]}: plays the
episodes in one session, and prints for each the rewards of its steps and whether the last one ended it.
"""

import json
import sys

from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


def main() -> None:
    """Play the episodes on the standard input."""
    work = json.load(sys.stdin)
    kind = MCPToolClient if work["tools"] else GenericEnvClient
    played = []
    with kind(base_url=work["url"]).sync() as client:
        for episode in work["episodes"]:
            client.reset(**episode["reset"])
            actions = [CallToolAction(**action) if work["tools"] else action for action in episode["actions"]]
            results = [client.step(action) for action in actions]
            played.append({"rewards": [result.reward for result in results], "done": results[-1].done})
    print(json.dumps(played))


if __name__ == "__main__":
    main()

"""Description of a Crafter observation in words."""

from collections.abc import Mapping

from turnmill.environments.crafter.game import Observation

VITALS = ("health", "food", "drink", "energy")


def describe(observation: Observation) -> str:
    """Describe the player's state, surroundings, vitals and inventory, one paragraph each."""
    inventory = observation["inventory"]
    parts = [_state(observation), _surroundings(observation["surroundings"]), _facing(observation["facing"])]
    return "\n\n".join([*filter(None, parts), _vitals(inventory), _inventory(inventory)])


def _state(observation: Observation) -> str:
    if observation["dead"]:
        return "You died."
    return "You are sleeping." if observation["sleeping"] else ""


def _surroundings(cells: list[tuple[str, int, int]]) -> str:
    """Describe the nearest cell of each kind, nearest kinds first."""
    nearest: dict[str, tuple[int, int, int]] = {}
    for name, east, south in cells:
        distance = (abs(east) + abs(south), south, east)
        if name not in nearest or distance < nearest[name]:
            nearest[name] = distance
    lines = [
        f"- {name} {distance} step{'' if distance == 1 else 's'} to your {_direction(east, south)}"
        for name, (distance, south, east) in sorted(nearest.items(), key=lambda item: (item[1], item[0]))
    ]
    return "You see:\n" + "\n".join(lines) if lines else "You see nothing around you."


def _direction(east: int, south: int) -> str:
    parts = ["north" if south < 0 else "south" if south > 0 else "", "west" if east < 0 else "east" if east > 0 else ""]
    return "-".join(part for part in parts if part)


def _facing(name: str | None) -> str:
    return f"You face {name or 'nothing'} at your front."


def _vitals(inventory: Mapping[str, int]) -> str:
    return "Your status:\n" + "\n".join(f"- {name}: {inventory[name]}/9" for name in VITALS)


def _inventory(inventory: Mapping[str, int]) -> str:
    lines = [f"- {name}: {number}" for name, number in inventory.items() if name not in VITALS and number]
    return "Your inventory:\n" + "\n".join(lines) if lines else "You have nothing in your inventory."

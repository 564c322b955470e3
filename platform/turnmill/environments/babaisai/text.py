"""Description of a BabaIsAI map in words."""

from collections.abc import Iterator
from functools import cache

from turnmill.environments.babaisai.engine import World


def describe(world: World) -> str:
    """Describe the active rules, then all things but the border, relative to the first thing that is YOU."""
    rules = "\n".join(world.rules)
    return f"Active rules:\n{rules}\n\nObjects on the map:\n" + "\n".join(_things(world))


def _things(world: World) -> Iterator[str]:
    you = world.find("you")[0]
    row, column = divmod(you, world.width)
    for index, cell in enumerate(world.cells):
        if cell and cell[-1].kind != "border" and index != you:
            thing = cell[-1]
            yield _line(thing.name, thing.is_text, index % world.width - column, index // world.width - row)


@cache
def _line(name: str, is_text: bool, right: int, down: int) -> str:
    parts = []
    if right:
        parts.append(f"{format_steps(right)} to the {'right' if right > 0 else 'left'}")
    if down:
        parts.append(f"{format_steps(down)} {'down' if down > 0 else 'up'}")
    return f"{f'rule `{name}`' if is_text else name} {' and '.join(parts)}"


def format_steps(number: int) -> str:
    """Return `1 step` or `3 steps`, ignoring the sign."""
    return f"{abs(number)} step{'' if abs(number) == 1 else 's'}"

"""Which files of the repository a program runs: those that it imports, and those whose modules it names in a string."""

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where modules are found, as in pytest's settings.
PLACES = (ROOT / "platform", ROOT / "operator", ROOT / "tests")
PACKAGES = frozenset({"turnmill", "turnmill_operator", "support"})


@cache
def imported(file: Path, *, with_names: bool = True) -> tuple[Path, ...]:
    """Return the files that a file imports, at its top or within functions, and their packages.

    `with_names` adds those of modules that stand in a string, such as `python -m` and tables of classes have them.
    """
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        if isinstance(node, ast.Import):
            modules.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.update({node.module, *(f"{node.module}.{name.name}" for name in node.names)})
        elif with_names and isinstance(node, ast.Constant) and isinstance(node.value, str):
            modules.update(word.partition(":")[0] for word in node.value.split() if "." in word)
    return tuple(_places(modules))


def closure(files: Iterable[Path], uses: Callable[[Path], Iterable[Path]] = imported) -> list[Path]:
    """Return files with all that they use, directly or not, sorted: by default what they import and name."""
    waiting = list(files)
    found = set(waiting)
    while waiting:
        new = set(uses(waiting.pop())) - found
        found |= new
        waiting.extend(new)
    return sorted(found)


def _places(modules: Iterable[str]) -> Iterator[Path]:
    for module in modules:
        parts = module.split(".")
        if parts[0] not in PACKAGES or not all(part.isidentifier() for part in parts):
            continue
        for end in range(1, len(parts) + 1):
            for root in PLACES:
                place = root.joinpath(*parts[:end])
                yield from (each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file())

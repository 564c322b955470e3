import sys
from itertools import combinations
from pathlib import Path, PurePath

import pytest

from turnmill.sandboxes.visible_paths import readable_paths


@pytest.mark.parametrize("packages", [[], ["numpy"]])
def test_a_folder_comes_before_what_is_in_it(packages: list[str]):
    """A path that was bound into a root makes the folders above it, which would then be taken for bound, and empty."""
    paths = list(map(PurePath, readable_paths(packages)))

    assert [(inner, outer) for inner, outer in combinations(paths, 2) if outer in inner.parents] == []


def test_a_prefix_of_python_is_readable_with_its_programs():
    python = Path(sys.executable).resolve()

    assert any(python.is_relative_to(path) for path in readable_paths([]))

"""What the images copy reaches their builder."""

import shlex
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERFILES = sorted(ROOT.glob("images/*/Containerfile"))
SENT = [line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")]


def copied_from_the_source(containerfile: Path) -> list[str]:
    """Return the sources of all COPY instructions, except those from other stages."""
    lines = containerfile.read_text().replace("\\\n", " ").splitlines()
    words = [shlex.split(line)[1:] for line in lines if line.startswith("COPY ") and "--from=" not in line]
    return [source for copy in words for source in copy[:-1]]


@pytest.mark.parametrize("containerfile", CONTAINERFILES, ids=lambda path: path.parent.name)
def test_everything_that_an_image_copies_exists_and_is_sent_to_the_builder(containerfile: Path):
    sources = copied_from_the_source(containerfile)

    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        parents = {str(parent) for parent in (PurePosixPath(source), *PurePosixPath(source).parents)}
        assert parents & set(SENT), f"{source} is not in .containerignore"

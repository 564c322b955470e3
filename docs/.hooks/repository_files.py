"""Put the files of the repository that pages link to into the site, and lead the links there."""

import re
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FOLDER = "repository"
_LINK = re.compile(r"(?<=\]\()((?:\.\./)+[^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file outside of docs/ that a page links to; Markdown becomes text, as its own links lead elsewhere."""
    outside = {target for file in files.documentation_pages() for target in _targets(file)}
    for target in sorted(outside):
        path = ROOT / target
        if path.is_file():
            files.append(File.generated(config, f"{FOLDER}/{target}.txt", content=path.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files outside of docs/ to their copies; those to folders to the repository."""
    here = Path(page.file.src_uri).parent.as_posix()

    def moved(match: re.Match[str]) -> str:
        target = _outside(here, match[1])
        if target is None:
            return match[1]
        if (ROOT / target).is_file():
            return relpath(f"{FOLDER}/{target}.txt", here)
        return f"{page.edit_url.partition('/edit/')[0]}/tree/main/{target}" if (ROOT / target).is_dir() else match[1]

    return _LINK.sub(moved, markdown)


def _targets(file: File) -> set[str]:
    here = Path(file.src_uri).parent.as_posix()
    found = (_outside(here, link) for link in _LINK.findall(file.content_string))
    return {target for target in found if target}


def _outside(here: str, link: str) -> str | None:
    path = normpath(f"docs/{here}/{link}")
    return None if path.startswith("docs/") else path

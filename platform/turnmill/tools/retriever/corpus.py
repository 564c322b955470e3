"""A corpus of documents, one JSON object per line."""

import json
from pathlib import Path

from turnmill.core.errors import SettingsError

Document = dict[str, object]


def read_corpus(file: Path) -> list[Document]:
    """Read the documents; each has `contents` with title and text, or separate fields `title` and `text`.

    Raises SettingsError if the file cannot be read or a line is not such a document.
    """
    try:
        # Not `splitlines`: JSON lets other ends of lines, such as U+2028, stand in a text.
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The corpus {file} cannot be read: {error}.") from error
    documents = [_document(file, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not documents:
        raise SettingsError(f"The corpus {file} is empty: write one JSON object a line, with `contents`.")
    return documents


def _document(file: Path, number: int, line: str) -> Document:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise SettingsError(f"{file}, line {number}: no JSON: {error}.") from error
    if isinstance(document, dict):
        if isinstance(document.get("contents"), str):
            return document
        if isinstance(document.get("text"), str):
            return {**document, "contents": f"{document.get('title', '')}\n{document['text']}"}
    raise SettingsError(f"{file}, line {number}: the object must have `contents`, or `text` and perhaps `title`.")

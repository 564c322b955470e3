"""Checksums of files."""

import hashlib
from pathlib import Path


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def git_blob_of(file: Path) -> str:
    """Return the name that git gives to a file of this content: a SHA-1 as 40 hexadecimal digits."""
    digest = hashlib.sha1(f"blob {file.stat().st_size}\0".encode(), usedforsecurity=False)
    with file.open("rb") as content:
        while chunk := content.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()

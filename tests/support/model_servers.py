"""Servers that models are fetched from: one of files, and a hub as its client knows it."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGE_BYTES = 1000
"""From this size on, the hub keeps a file by its SHA-256, as it does with weights."""


@dataclass
class Requests:
    """What was asked for, and faults to come."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    cut_after: int | None = None
    """Bytes after which the next answer breaks off."""


@contextmanager
def file_server(files: Mapping[str, bytes]) -> Iterator[Requests]:
    """Serve files by their paths; ranges of them, too."""
    seen = Requests()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            seen.paths.append(self.path)
            seen.ranges.append(asked)
            content = files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end, seen.cut_after = seen.cut_after, None
            self.wfile.write(content[start:] if end is None else content[start : start + end])
            if end is not None:
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    with _serving(Handler) as url:
        seen.url = url
        yield seen


@contextmanager
def hub(repository: str, commit: str, files: Mapping[str, bytes]) -> Iterator[Requests]:
    """Serve a repository as the hub does: its files at a commit, with their checksums, and each file."""
    seen = Requests()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            seen.paths.append(path)
            name = path.removeprefix(f"/{repository}/resolve/{commit}/")
            if path in (f"/api/models/{repository}/revision/main", f"/api/models/{repository}/revision/{commit}"):
                self._send(json.dumps(_repository(repository, commit, files)).encode(), {}, with_body=with_body)
            elif path == f"/api/models/{repository}/tree/{commit}":
                self._send(json.dumps(_tree(files)).encode(), {}, with_body=with_body)
            elif name in files:
                content = files[name]
                headers = {"X-Repo-Commit": commit, "ETag": f'"{_etag(content)}"'}
                self._send(content, headers, with_body=with_body)
            else:
                self._send(b"{}", {"X-Error-Code": "RepoNotFound"}, with_body=with_body, status=404)

        def _send(self, body: bytes, headers: Mapping[str, str], *, with_body: bool, status: int = 200) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with _serving(Handler) as url:
        seen.url = url
        yield seen


def _repository(repository: str, commit: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    siblings = []
    for name, content in files.items():
        entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_blob(content)}
        if len(content) >= LARGE_BYTES:
            entry["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
        siblings.append(entry)
    return {"id": repository, "modelId": repository, "sha": commit, "private": False, "tags": [], "siblings": siblings}


def _tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    entries = []
    for name, content in files.items():
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_blob(content)}
        if len(content) >= LARGE_BYTES:
            entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
        entries.append(entry)
    return entries


def sha256(content: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def git_blob(content: bytes) -> str:
    """Return the name that git gives to bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _etag(content: bytes) -> str:
    return sha256(content) if len(content) >= LARGE_BYTES else git_blob(content)


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""HTTP server of a run in a cluster: metrics for Prometheus, and progress for the operator."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from turnmill.core.errors import SettingsError
from turnmill.jobs.status import JobProgress
from turnmill.observability.progress import read_progress
from turnmill.observability.prometheus import STOP_REASONS
from turnmill.observability.run_folder import RunFolder
from turnmill.training import checkpoints

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TRAINER_SECONDS = 5.0


class ProgressServer:
    """Serves `/metrics`, forwarded from the trainer once it runs, and `/progress`.

    `/progress` says whose it is: the address of a pod that is gone may belong to another run by now.
    """

    def __init__(self, folder: RunFolder, *, steps: int, run: str, attempt: int) -> None:
        self._folder = folder
        self._steps = steps
        self._identity = {"run": run, "attempt": attempt}
        self._ended: str | None = None
        self._seen = threading.Event()

    @contextmanager
    def serve(self, port: int) -> Iterator[int]:
        """Serve on all interfaces while the context lasts; yield the port."""
        answers: dict[str, Callable[[], tuple[str, bytes]]] = {
            "/metrics": lambda: (METRICS_TYPE, self._metrics()),
            "/progress": lambda: ("application/json", self._progress()),
        }
        try:
            server = ThreadingHTTPServer(("", port), _handler(answers))
        except OSError as error:
            raise SettingsError(
                f"TURNMILL_METRICS_PORT ({port}) cannot be served: {error.strerror}. Give every job a port of its own."
            ) from error
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()

    def end(self, phase: str, *, wait_seconds: float) -> None:
        """Serve the last phase until it has been read once, or for a limited time."""
        self._seen.clear()
        self._ended = phase
        self._seen.wait(wait_seconds)

    def _progress(self) -> bytes:
        ended = self._ended
        progress = progress_of(self._folder, steps=self._steps) | ({"phase": ended} if ended else {})
        answer = json.dumps(progress | self._identity).encode()
        if ended:
            self._seen.set()
        return answer

    def _metrics(self) -> bytes:
        try:
            url = (self._folder.path / "metrics_url").read_text().strip()
            with urllib.request.urlopen(url, timeout=TRAINER_SECONDS) as response:
                return bytes(response.read())
        except (OSError, urllib.error.URLError):
            # Before Ray has started the trainer, the target is up without any series.
            return b""


def progress_of(folder: RunFolder, *, steps: int) -> dict[str, object]:
    """Return the phase of a run and the fields of `status.progress`, from the files of its folder."""
    progress = read_progress(folder)
    last = folder.last_step()
    newest = checkpoints.latest(folder.checkpoints)
    episodes = {reason: last.get(f"turnmill/episodes/{reason}") or 0.0 for reason in STOP_REASONS}
    ended, seconds = sum(episodes.values()), last.get("timing_s/step")
    known = JobProgress(
        step=int(last.get("step", 0)),
        steps=steps,
        success=last.get("turnmill/success"),
        reward_mean=last.get("turnmill/reward_mean"),
        rollouts_per_second=ended / seconds if seconds else None,
        infra_failed_ratio=episodes["failed"] / ended if ended else None,
        checkpoint_step=newest.state.step if newest else None,
        damaged_checkpoints=len(checkpoints.damaged(folder.checkpoints)) or None,
    )
    return {"phase": progress.phase if progress else "starting"} | known.model_dump(by_alias=True, exclude_none=True)


def _handler(answers: dict[str, Callable[[], tuple[str, bytes]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            if answer is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            kind, content = answer()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Do nothing: scrapes are not logged."""

    return Handler

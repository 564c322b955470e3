"""Prometheus metrics of a server with several worker processes: each worker serves the sums over all of them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

# Read by prometheus_client at import; it keeps the values of all workers in files of this folder.
WORKERS_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


@contextmanager
def metrics_of_workers() -> Iterator[None]:
    """Give workers that start meanwhile a folder for their metrics."""
    folder = tempfile.mkdtemp(prefix="turnmill-metrics-")
    # The workers' prometheus_client reads it when it is imported.
    os.environ[WORKERS_FOLDER_VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[WORKERS_FOLDER_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def metrics_text(registry: CollectorRegistry, *own: Collector) -> bytes:
    """Return all metrics in Prometheus' text format; with several workers, the sums, and `own` of this one alone."""
    if WORKERS_FOLDER_VARIABLE not in os.environ:
        return prometheus_client.generate_latest(registry)
    remove_dead_workers(Path(os.environ[WORKERS_FOLDER_VARIABLE]))
    together = CollectorRegistry()
    MultiProcessCollector(together)
    for collector in own:
        together.register(collector)
    return prometheus_client.generate_latest(together)


def remove_dead_workers(folder: Path) -> None:
    """Delete the gauges of dead workers, whose calls would count as in flight for ever."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        if not Path(f"/proc/{pid}").exists():
            file.unlink(missing_ok=True)

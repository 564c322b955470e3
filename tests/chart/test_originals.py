"""The page of the originals' files is that of the recorded results."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def originals(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("originals", BENCHMARKS / "originals.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "originals", module)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_recorded_results(originals):
    assert originals.PAGE.read_text() == originals.page()


def test_every_file_works_or_has_a_sentence(originals):
    silent = [
        r.file for r in originals.latest() if r.outcome == "fails" or (r.outcome == "refused" and not r.sentences)
    ]

    assert silent == []

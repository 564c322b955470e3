import json

import numpy as np
import pytest

from turnmill.core.errors import SettingsError, ToolUnavailableError
from turnmill.tools.retriever.corpus import read_corpus
from turnmill.tools.retriever.index import Bm25Index, EmbeddingIndex, build_index

DOCUMENTS = [
    {"id": "1", "contents": "Mill\nA mill grinds grain between two stones."},
    {"id": "2", "contents": "Whale\nA whale is the largest animal of the sea."},
    {"id": "3", "contents": "Bread\nBread is made of ground grain and water."},
]


@pytest.fixture
def corpus(tmp_path):
    return tmp_path / "corpus.jsonl"


def test_documents_have_contents_or_a_title_and_a_text(corpus):
    lines = [{"contents": "T\nx", "id": 1}, {"title": "A", "text": "b"}, {"text": "c"}]
    corpus.write_text("\n".join(map(json.dumps, lines)) + "\n\n")

    assert [document["contents"] for document in read_corpus(corpus)] == ["T\nx", "A\nb", "\nc"]


def test_a_document_may_contain_unicode_line_separators(corpus):
    corpus.write_text('{"contents": "a\u2028b\x85c"}\r\n{"contents": "d"}\n', encoding="utf-8")

    assert [document["contents"] for document in read_corpus(corpus)] == ["a\u2028b\x85c", "d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"contents": "a"}\n{"x": 1}', "line 2: the object must have `contents`"),
        ("[]", "line 1: the object must have"),
        ("{", "line 1: no JSON"),
    ],
)
def test_an_invalid_corpus_is_refused_with_the_line(corpus, text, message):
    corpus.write_text(text)

    with pytest.raises(SettingsError, match=message):
        read_corpus(corpus)


def test_documents_with_the_words_of_a_query_come_first():
    index = Bm25Index(DOCUMENTS)

    (grain, sea) = index.search(["ground grain", "animals of the SEA"], topk=2)

    assert [document["id"] for document, _ in grain] == ["3", "1"]
    assert [document["id"] for document, _ in sea] == ["2"]
    assert grain[0][1] > grain[1][1] > 0


def test_a_search_returns_only_documents_that_match():
    assert len(Bm25Index(DOCUMENTS).search(["grain"], topk=50)[0]) == 2


def test_a_query_without_a_known_word_finds_nothing():
    assert Bm25Index(DOCUMENTS).search(["zebra", ""], topk=3) == [[], []]


def test_an_embedding_index_ranks_by_similarity(monkeypatch):
    monkeypatch.setattr("turnmill.tools.retriever.index._import", lambda *_: _Library)

    index = build_index("embedding", DOCUMENTS, "a-model")

    assert isinstance(index, EmbeddingIndex)
    assert [document["id"] for document, _ in index.search(["whale"], topk=1)[0]] == ["2"]


class _Library:
    """Counts the letters of a text."""

    def __init__(self, model: str) -> None:
        assert model == "a-model"

    def encode(self, texts: list[str], **_: object) -> np.ndarray:
        counts = np.array([[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)


_Library.SentenceTransformer = _Library  # type: ignore[assignment]


def test_an_embedding_index_requires_its_library_and_a_model():
    with pytest.raises(ToolUnavailableError, match="--model"):
        build_index("embedding", DOCUMENTS)
    with pytest.raises(ToolUnavailableError, match="sentence-transformers, which is not installed"):
        build_index("embedding", DOCUMENTS, "a-model")

"""Indexes of documents: BM25, or embeddings if a library for them is installed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np

from turnmill.core.errors import ToolUnavailableError
from turnmill.tools.retriever.corpus import Document

Found = tuple[Document, float]
IndexKind = Literal["bm25", "embedding"]


class Index(ABC):
    """Documents that can be searched."""

    @abstractmethod
    def search(self, queries: Sequence[str], topk: int) -> list[list[Found]]:
        """Return the documents for each query, best first; at most as many as there are."""


class Bm25Index(Index):
    """Ranks by BM25."""

    def __init__(self, documents: Sequence[Document]) -> None:
        bm25s = _import("bm25s", "bm25s")
        self._documents = documents
        self._library = bm25s
        self._index = bm25s.BM25()
        self._index.index(self._tokenize([str(document["contents"]) for document in documents]), show_progress=False)

    def _tokenize(self, texts: list[str]) -> Any:
        return self._library.tokenize(texts, stopwords="en", show_progress=False)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Found]]:
        """Return the best documents that share a word with the query."""
        count = min(topk, len(self._documents))
        numbers, scores = self._index.retrieve(self._tokenize(list(queries)), k=count, show_progress=False)
        return [
            [(self._documents[number], float(score)) for number, score in zip(*ranked, strict=True) if score > 0]
            for ranked in zip(numbers, scores, strict=True)
        ]


class EmbeddingIndex(Index):
    """Ranks by cosine similarity of embeddings from a model of sentence-transformers."""

    def __init__(self, documents: Sequence[Document], model: str) -> None:
        library = _import("sentence_transformers", "sentence-transformers")
        self._documents = documents
        self._model = library.SentenceTransformer(model)
        self._vectors = self._encode([str(document["contents"]) for document in documents])

    def search(self, queries: Sequence[str], topk: int) -> list[list[Found]]:
        """Return the best documents, however dissimilar."""
        scores = self._encode(list(queries)) @ self._vectors.T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :topk]
        return [
            [(self._documents[number], float(row[number])) for number in numbers]
            for row, numbers in zip(scores, best, strict=True)
        ]

    def _encode(self, texts: list[str]) -> Any:
        return np.asarray(self._model.encode(texts, normalize_embeddings=True, show_progress_bar=False))


def build_index(kind: IndexKind, documents: Sequence[Document], model: str | None = None) -> Index:
    """Build an index; raises ToolUnavailableError if its library is not installed."""
    if kind == "bm25":
        return Bm25Index(documents)
    if not model:
        raise ToolUnavailableError("An embedding index needs a model: name one with --model.")
    return EmbeddingIndex(documents, model)


def _import(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ToolUnavailableError(f"The retriever needs {package}, which is not installed: {error}.") from error

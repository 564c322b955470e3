"""The HTTP service around an index."""

from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

from turnmill.tools.retriever.index import Index


class Query(BaseModel):
    """What `POST /retrieve` takes."""

    queries: list[str]
    topk: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Documents per query; left out or 0, the service's own number."""

    return_scores: bool = False


def create_app(index: Index, topk: int) -> FastAPI:
    """An app that answers from this index."""
    app = FastAPI(title="turnmill retriever")

    # Plain functions: searching is work for the processor, and runs in a thread beside the event loop.
    @app.post("/retrieve")
    def retrieve(query: Query) -> dict[str, Any]:
        """The best documents for each query."""
        found = index.search(query.queries, query.topk or topk) if query.queries else []
        if query.return_scores:
            return {"result": [[{"document": item, "score": score} for item, score in ranked] for ranked in found]}
        return {"result": [[item for item, _ in ranked] for ranked in found]}

    @app.get("/health")
    def health() -> dict[str, str]:
        """Whether it answers."""
        return {"status": "healthy"}

    return app

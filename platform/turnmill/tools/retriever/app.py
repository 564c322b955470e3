"""HTTP service of an index."""

from typing import Annotated

from fastapi import FastAPI
from pydantic import BaseModel, Field

from turnmill.tools.retriever.index import Index


class Query(BaseModel):
    """Body of `POST /retrieve`."""

    queries: list[str]
    topk: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Documents per query; left out or 0, the service's default."""

    return_scores: bool = False


def create_app(index: Index, topk: int) -> FastAPI:
    """Build the application; `topk` is the number of documents for queries that give none."""
    app = FastAPI(title="turnmill retriever")

    # Plain functions: searching is CPU-bound, and runs in a thread beside the event loop.
    @app.post("/retrieve")
    def retrieve(query: Query) -> dict[str, object]:
        """Return the best documents for each query."""
        found = index.search(query.queries, query.topk or topk) if query.queries else []
        if query.return_scores:
            return {"result": [[{"document": item, "score": score} for item, score in ranked] for ranked in found]}
        return {"result": [[item for item, _ in ranked] for ranked in found]}

    @app.get("/health")
    def health() -> dict[str, str]:
        """Report that the service is running."""
        return {"status": "healthy"}

    return app

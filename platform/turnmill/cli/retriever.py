"""`turnmill retriever`: search server over a corpus of documents."""

from pathlib import Path
from typing import Annotated

import typer

from turnmill.cli.extras import needs_extra
from turnmill.core.errors import SettingsError


def retriever(
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS.jsonl", help="File with one JSON object per line, with field `contents`.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    topk: Annotated[int, typer.Option(min=1, help="Documents per query if the request does not set `topk`.")] = 3,
    index: Annotated[str, typer.Option(help="bm25, or embedding, which needs sentence-transformers.")] = "bm25",
    model: Annotated[str | None, typer.Option(help="Model of an embedding index: a folder or a name.")] = None,
) -> None:
    """Serve POST /retrieve over a corpus."""
    if index not in ("bm25", "embedding"):
        raise SettingsError(f"--index {index}: it must be bm25 or embedding.")
    with needs_extra("tool-server", "`turnmill retriever`"):
        import uvicorn

        from turnmill.tools.retriever.app import create_app
        from turnmill.tools.retriever.corpus import read_corpus
        from turnmill.tools.retriever.index import build_index
    documents = read_corpus(corpus)
    app = create_app(build_index("bm25" if index == "bm25" else "embedding", documents, model), topk)
    typer.echo(f"{len(documents)} documents at http://{host}:{port}/retrieve")
    uvicorn.run(app, host=host, port=port, log_level="warning")

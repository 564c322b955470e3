"""The retriever service: documents of a corpus for queries, over HTTP."""

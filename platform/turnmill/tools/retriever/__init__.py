"""The retriever service: searches a corpus of documents over HTTP."""

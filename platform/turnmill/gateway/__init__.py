"""The gateway: unchanged agents take it for a model server, and every token of their conversations is recorded."""

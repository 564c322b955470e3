"""Agents of examples, as their authors would write them: they know nothing of turnmill."""

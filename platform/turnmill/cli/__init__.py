"""Command line of turnmill."""

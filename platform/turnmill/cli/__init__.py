"""Entry points: parse, build, run."""

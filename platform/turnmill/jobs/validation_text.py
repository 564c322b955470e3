"""Problems of a file that is no job, in one line."""

from pydantic import ValidationError

from turnmill.jobs.yaml_file import dotted

MAX_PROBLEMS = 8


def problems_text(error: ValidationError) -> str:
    """Return place and rule of the first problems."""
    return "; ".join(f"{dotted(tuple(found['loc']))}: {found['msg']}" for found in error.errors()[:MAX_PROBLEMS])

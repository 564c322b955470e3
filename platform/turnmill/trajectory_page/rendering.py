"""HTML of the pages, from templates."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import jinja2
from fastapi.responses import HTMLResponse

from turnmill.trajectory_page import formatting

PACKAGE_DIR = Path(__file__).parent


def render(name: str, values: Mapping[str, object], *, status: int = 200) -> HTMLResponse:
    """Render a template as an HTML response."""
    return HTMLResponse(load_templates().get_template(name).render(values), status_code=status)


@cache
def load_templates() -> jinja2.Environment:
    """Load and compile all templates: at the start, not while the first visitor waits."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PACKAGE_DIR / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= formatting.FILTERS
    for name in environment.list_templates():
        environment.get_template(name)
    return environment

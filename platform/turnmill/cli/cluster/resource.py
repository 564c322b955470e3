"""Objects of the API server, as it sends them."""

from typing import Any

Resource = dict[str, Any]

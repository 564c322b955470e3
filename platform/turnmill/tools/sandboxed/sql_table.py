"""Text of rows, with right-aligned columns under their numbers."""

import math
from collections.abc import Sequence

EMPTY = "Empty DataFrame\nColumns: []\nIndex: []"
_PRECISION = 6
_MAX_WIDTH = 11


def render(rows: Sequence[Sequence[object]]) -> str:
    """Return a line of column numbers, then the rows."""
    if not rows:
        return EMPTY
    num_columns = len(rows[0])
    label_width = len(str(num_columns - 1))
    columns = [_column(str(number).ljust(label_width), [row[number] for row in rows]) for number in range(num_columns)]
    return "\n".join(" ".join(cells) for cells in zip(*columns, strict=True))


def _column(label: str, values: list[object]) -> list[str]:
    numbers = [float(value) for value in values if isinstance(value, (int, float))]
    has_none, has_float = None in values, any(isinstance(value, float) for value in values)
    if not numbers or len(numbers) + values.count(None) < len(values):
        cells = [f" {_numbers([value])[0]}" if isinstance(value, float) else _text(value) for value in values]
    elif has_float or has_none:
        label = f" {label}"
        cells = _numbers([math.nan if value is None else float(value) for value in values])  # type: ignore[arg-type]
    else:
        label = f" {label}"
        cells = [str(value) for value in values]
    width = max(map(len, (label, *cells)))
    return [cell.rjust(width) for cell in (label, *cells)]


def _numbers(values: list[float]) -> list[str]:
    """Format a column with the same number of decimals; very large beside very small numbers in powers of ten."""
    finite = [abs(value) for value in values if math.isfinite(value)]
    tiny = any(0 < value < 10**-_PRECISION for value in finite)
    cells = _trimmed(values)
    too_long = max(map(len, cells)) > _MAX_WIDTH and any(value > 1e6 for value in finite)
    if tiny or too_long:
        return [_special(value) or f"{value:.{_PRECISION}e}" for value in values]
    return cells


def _trimmed(values: list[float]) -> list[str]:
    cells = [_special(value) or f"{value:.{_PRECISION}f}" for value in values]
    numbers = [cell for cell, value in zip(cells, values, strict=True) if math.isfinite(value)]
    zeros = min((len(cell) - len(cell.rstrip("0")) for cell in numbers), default=0)
    cut = min(zeros, _PRECISION - 1)
    return [
        cell[: len(cell) - cut] if cut and math.isfinite(v) else cell for cell, v in zip(cells, values, strict=True)
    ]


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    return None if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def _text(value: object) -> str:
    """Return a string on one line; line breaks are shown as escape sequences."""
    if not isinstance(value, str):
        return str(value)
    return value.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")

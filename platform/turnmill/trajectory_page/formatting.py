"""Values as the templates show them."""

import time
from dataclasses import replace
from urllib.parse import quote

from turnmill.trajectory_page.detail import TurnView
from turnmill.trajectory_page.summary import Summary
from turnmill.trajectory_page.tokens import printable


def text(value: object) -> str:
    """Any text, with what a browser would not show made visible."""
    return printable(str(value))


def number(value: float | None, digits: int = 3) -> str:
    """A number with as many digits as tell something; a real minus."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}".replace("-", "−") if value else "0"


def signed(value: float | None) -> str:
    """A reward."""
    shown_ = number(value)
    return f"+{shown_}" if value is not None and value > 0 else shown_


def count(value: int) -> str:
    """Thousands apart."""
    return f"{value:,}".replace(",", "\u202f")


def seconds(value: float | None) -> str:
    """A time, in the unit that fits it."""
    if not value:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms" if value >= 0.001 else "< 1 ms"
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"


def span(first: int, last: int) -> str:
    """One number, or from where to where."""
    return str(first) if first == last else f"{first}–{last}"


def clock(at: float) -> str:
    """The time of day, in UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(at)) if at else ""


def moment(at: float) -> str:
    """Date and time, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def with_pictures(views: list[TurnView], summary: Summary, *, drawn: bool) -> list[TurnView]:
    """The turns with the addresses of their pictures."""
    key = quote(summary.key, safe="/@~-_.")
    return [
        replace(
            view,
            picture=f"/frame/{view.number + 1}/{key}" if drawn else None,
            picture_before=f"/frame/0/{key}" if drawn and position == 0 else None,
            images=[f"/picture/{quote(name, safe='')}" for name in view.record.images],
        )
        for position, view in enumerate(views)
    ]


FILTERS = {
    "text": text,
    "number": number,
    "signed": signed,
    "count": count,
    "seconds": seconds,
    "clock": clock,
    "moment": moment,
}

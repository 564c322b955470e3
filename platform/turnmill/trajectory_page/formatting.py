"""Formatting of values for the templates."""

import time
from dataclasses import replace
from urllib.parse import quote

from turnmill.trajectory_page.summary import Summary
from turnmill.trajectory_page.tokens import printable
from turnmill.trajectory_page.turn_view import TurnView


def format_text(value: object) -> str:
    """Return any value as text, with control characters made visible."""
    return printable(str(value))


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a number with a few significant digits and a typographic minus; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}".replace("-", "−") if value else "0"


def format_signed(value: float | None) -> str:
    """Return a number with its sign, for rewards and advantages."""
    formatted = format_number(value)
    return f"+{formatted}" if value is not None and value > 0 else formatted


def format_count(value: int) -> str:
    """Return an integer with its thousands separated."""
    return f"{value:,}".replace(",", "\u202f")


def format_seconds(value: float | None) -> str:
    """Return a duration in milliseconds, seconds or minutes."""
    if not value:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms" if value >= 0.001 else "< 1 ms"
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"


def format_time(at: float) -> str:
    """Return the time of day in UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(at)) if at else ""


def format_date_time(at: float) -> str:
    """Return date and time in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def quote_key(key: str) -> str:
    """Return the key of a trajectory as a part of a URL."""
    return quote(key, safe="/@~-_.")


def with_image_urls(views: list[TurnView], summary: Summary, *, has_frames: bool, base: str) -> list[TurnView]:
    """Return the turns with the URLs of their images."""
    key = quote_key(summary.key)
    return [
        replace(
            view,
            frame_url=f"{base}/frame/{view.number + 1}/{key}" if has_frames else None,
            first_frame_url=f"{base}/frame/0/{key}" if has_frames and position == 0 else None,
            image_urls=[f"{base}/picture/{quote(name, safe='')}" for name in view.record.images],
        )
        for position, view in enumerate(views)
    ]


FILTERS = {
    "text": format_text,
    "number": format_number,
    "signed": format_signed,
    "count": format_count,
    "seconds": format_seconds,
    "clock": format_time,
    "moment": format_date_time,
    "path": quote_key,
}

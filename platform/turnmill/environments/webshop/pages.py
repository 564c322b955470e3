"""Pages of a shop: text, and labels that can be clicked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

BACK_TO_SEARCH, NEXT_PAGE, PREVIOUS_PAGE, BUY = "back to search", "next >", "< prev", "buy now"
SEPARATOR = " [SEP] "


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a shop."""

    parts: tuple[str, ...]
    """Pieces of its text."""

    clickables: Mapping[str, str] = field(default_factory=dict)
    """Addresses by the labels that can be clicked, in lower case."""

    search_address: str | None = None
    """Address of the search form; None if the page has no search bar."""

    reward: float | None = None
    """Reward of the purchase, between 0 and 1; None before it."""

    @property
    def text(self) -> str:
        """Text of the page, as WebShop's text environment joins it."""
        return SEPARATOR.join(self.parts)

    @property
    def actions(self) -> list[str]:
        """Actions that are possible on the page."""
        search = ["search[<content>]"] if self.search_address is not None else []
        return [*search, *(f"click[{label}]" for label in self.clickables)]


class Shop(Protocol):
    """A shop that serves pages."""

    def start(self, seed: int) -> Page:
        """Start an episode with the goal of a seed, and return the search page."""

    def search(self, page: Page, words: str) -> Page:
        """Return the first page of results."""

    def click(self, page: Page, label: str) -> Page:
        """Return the page behind one of `page.clickables`."""

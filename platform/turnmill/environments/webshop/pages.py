"""What a shop shows: a page of text with things to click on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

BACK_TO_SEARCH, NEXT_PAGE, PREVIOUS_PAGE, BUY = "back to search", "next >", "< prev", "buy now"
SEPARATOR = " [SEP] "


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    parts: tuple[str, ...]
    """Its text, piece by piece."""

    clickables: Mapping[str, str] = field(default_factory=dict)
    """What can be clicked on, in lower case, and the address that it leads to."""

    search_address: str | None = None
    """Where a search goes to; None without a search bar."""

    reward: float | None = None
    """What the purchase is worth; None before it."""

    @property
    def text(self) -> str:
        """What a shopper reads."""
        return SEPARATOR.join(self.parts)

    @property
    def actions(self) -> list[str]:
        """What a shopper can do."""
        search = ["search[<content>]"] if self.search_address is not None else []
        return [*search, *(f"click[{label}]" for label in self.clickables)]


class Shop(Protocol):
    """Whoever serves the pages."""

    def start(self, seed: int) -> Page:
        """The search page of a new shopper, with what the seed wants him to buy."""

    def search(self, page: Page, words: str) -> Page:
        """The first page of results."""

    def click(self, page: Page, label: str) -> Page:
        """Where one of `page.clickables` leads."""

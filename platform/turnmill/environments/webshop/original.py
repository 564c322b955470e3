"""The original WebShop, served elsewhere: its pages read as text and links."""

import urllib.error
import urllib.parse
import urllib.request
from html.parser import HTMLParser

from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.webshop.pages import Page

_MAX_PAGE_BYTES = 8 * 2**20
_SILENT = frozenset({"style", "script", "head", "title"})
_VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})


class OriginalShop:
    """Clicks through the pages of a WebShop server."""

    def __init__(self, url: str, *, num_goals: int, timeout_seconds: float) -> None:
        self._url = url.rstrip("/")
        self._num_goals = num_goals
        self._timeout_seconds = timeout_seconds

    def start(self, seed: int) -> Page:
        """The search page of the session that the server gives the goal of that number."""
        return self._open(f"{self._url}/turnmill_fixed_{seed % self._num_goals}")

    def search(self, page: Page, words: str) -> Page:
        """What the search form brings."""
        assert page.search_address is not None, "only a page with a search bar is searched from"
        return self._open(page.search_address, {"search_query": words})

    def click(self, page: Page, label: str) -> Page:
        """What a link, a button or an option brings."""
        return self._open(page.clickables[label])

    def _open(self, address: str, form: dict[str, str] | None = None) -> Page:
        data = None if form is None else urllib.parse.urlencode(form).encode()
        try:
            with urllib.request.urlopen(address, data, timeout=self._timeout_seconds) as response:
                body = response.read(_MAX_PAGE_BYTES)
                return read_page(body.decode("utf-8", "replace"), response.url)
        except (OSError, urllib.error.URLError, ValueError) as error:
            raise EnvironmentFailedError(
                f"environment.options.url: {self._url} gave no page: {error}. Is WebShop running there?"
            ) from error


def read_page(html: str, address: str) -> Page:
    """The text and the links of a page of WebShop; relative links start from `address`."""
    reader = _Reader(address)
    reader.feed(html)
    reader.close()
    return Page(tuple(reader.parts), reader.clickables, reader.search_address, reader.reward)


class _Reader(HTMLParser):
    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.parts: list[str] = []
        self.clickables: dict[str, str] = {}
        self.search_address: str | None = None
        self.reward: float | None = None
        self._open: list[str] = []
        self._form = ""
        self._link = ""
        self._in_reward = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note where forms, buttons, links and options lead."""
        given = {name: value or "" for name, value in attributes}
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "form":
            self._form = urllib.parse.urljoin(self.address, given.get("action", ""))
        elif tag == "button":
            self._link = self._form
        elif tag == "a" and "product-link" in given.get("class", ""):
            self._link = urllib.parse.urljoin(self.address, given.get("href", ""))
        elif tag == "input" and given.get("id") == "search_input":
            self.search_address = self._form
        elif tag == "input" and given.get("type") == "radio":
            self.clickables[given.get("value", "").lower()] = urllib.parse.urljoin(
                self.address, given.get("data-url", "")
            )
        if given.get("id") == "reward":
            self._in_reward = True

    def handle_endtag(self, tag: str) -> None:
        """Forget what is closed."""
        # Pages close some headings by another name: what is open inside is closed with what holds it.
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if tag in ("button", "a"):
            self._link = ""

    def handle_data(self, data: str) -> None:
        """Collect text, and what it is a label of."""
        words = data.strip()
        if not words or _SILENT & set(self._open):
            return
        self.parts.append(words)
        if self._link and words.lower() != "search":
            self.clickables[words.lower()] = self._link
        if self._in_reward and self._open and self._open[-1] == "pre":
            self.reward = float(words)
            self._in_reward = False

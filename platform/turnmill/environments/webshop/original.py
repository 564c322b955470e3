"""Client of an original WebShop server: its pages are parsed into text and links."""

import urllib.error
import urllib.parse
import urllib.request
from html.parser import HTMLParser

from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.webshop.pages import Page

_MAX_PAGE_BYTES = 8 * 2**20
_INVISIBLE_TAGS = frozenset({"style", "script", "head", "title"})
_VOID_TAGS = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})


class OriginalShop:
    """A session on a WebShop server."""

    def __init__(self, url: str, *, num_goals: int, timeout_seconds: float) -> None:
        self._url = url.rstrip("/")
        self._num_goals = num_goals
        self._timeout_seconds = timeout_seconds

    def start(self, seed: int) -> Page:
        """Open the search page of the session with the goal of number `seed`, modulo the number of goals."""
        return self._open(f"{self._url}/turnmill_fixed_{seed % self._num_goals}")

    def search(self, page: Page, words: str) -> Page:
        """Submit the search form."""
        assert page.search_address is not None, "the page has a search bar"
        return self._open(page.search_address, {"search_query": words})

    def click(self, page: Page, label: str) -> Page:
        """Follow a link, a button or an option."""
        return self._open(page.clickables[label])

    def _open(self, address: str, form: dict[str, str] | None = None) -> Page:
        data = None if form is None else urllib.parse.urlencode(form).encode()
        try:
            with urllib.request.urlopen(address, data, timeout=self._timeout_seconds) as response:
                body = response.read(_MAX_PAGE_BYTES)
                return read_page(body.decode("utf-8", "replace"), response.url)
        except (OSError, urllib.error.URLError, ValueError) as error:
            raise EnvironmentFailedError(
                f"environment.options.url: {self._url} returned no page: {error}. Is WebShop running there?"
            ) from error


def read_page(html: str, address: str) -> Page:
    """Parse a page of WebShop into text and links; relative links are resolved against `address`."""
    reader = _PageParser(address)
    reader.feed(html)
    reader.close()
    return Page(tuple(reader.parts), reader.clickables, reader.search_address, reader.reward)


class _PageParser(HTMLParser):
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
        """Record the addresses of forms, buttons, links and options."""
        given = {name: value or "" for name, value in attributes}
        if tag not in _VOID_TAGS:
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
        """Close a tag and all tags that are open inside of it."""
        # Pages close some headings with another tag.
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if tag in ("button", "a"):
            self._link = ""

    def handle_data(self, data: str) -> None:
        """Collect text, and the labels of links and buttons."""
        words = data.strip()
        if not words or _INVISIBLE_TAGS & set(self._open):
            return
        self.parts.append(words)
        if self._link and words.lower() != "search":
            self.clickables[words.lower()] = self._link
        if self._in_reward and self._open and self._open[-1] == "pre":
            self.reward = float(words)
            self._in_reward = False

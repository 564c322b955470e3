"""A small built-in shop with the pages of WebShop."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from turnmill.environments.webshop.catalogue import Goal, Product, draw_goal, products
from turnmill.environments.webshop.pages import BACK_TO_SEARCH, BUY, NEXT_PAGE, PREVIOUS_PAGE, Page

PER_PAGE = 10
MAX_FOUND = 50
_SUB_PAGES = ("description", "features", "reviews")


class SmallShop:
    """Serves pages by address; the chosen options are part of the address."""

    def __init__(self) -> None:
        self._goal = draw_goal(0)

    @property
    def goal(self) -> Goal:
        """Goal of the episode in progress."""
        return self._goal

    def start(self, seed: int) -> Page:
        """Return the search page with the goal of a seed."""
        self._goal = draw_goal(seed)
        return self._search_page()

    def search(self, page: Page, words: str) -> Page:
        """Return the first page of results."""
        return self._results(words, 1)

    def click(self, page: Page, label: str) -> Page:
        """Return the page behind a label."""
        address = json.loads(page.clickables[label])
        match address["page"]:
            case "start":
                return self._search_page()
            case "results":
                return self._results(address["words"], address["number"])
            case "product":
                return self._product(address)
            case "done":
                return self._done(address)
            case sub_page:
                return self._sub_page(sub_page, address)

    def _search_page(self) -> Page:
        return Page(("WebShop", *self._instruction(), "Search"), search_address="search")

    def _instruction(self) -> tuple[str, str]:
        return ("Instruction:", self._goal.instruction)

    def _results(self, words: str, number: int) -> Page:
        found = find(words)
        on_page = found[(number - 1) * PER_PAGE : number * PER_PAGE]
        clickables = {BACK_TO_SEARCH: _address("start")}
        if number > 1:
            clickables[PREVIOUS_PAGE] = _address("results", words=words, number=number - 1)
        if number * PER_PAGE < len(found):
            clickables[NEXT_PAGE] = _address("results", words=words, number=number + 1)
        parts = [*self._instruction(), *_labels(clickables), f"Page {number} (Total results: {len(found)})"]
        for product in on_page:
            clickables[product.number] = _address("product", product=product.number, words=words, number=number)
            parts += [product.number.upper(), product.title, f"${product.price:.2f}"]
        return Page(tuple(parts), clickables)

    def _product(self, address: Mapping[str, Any]) -> Page:
        product = products()[address["product"]]
        chosen = address.get("chosen", {})
        base = {key: value for key, value in address.items() if key not in ("page", "chosen")}
        clickables = {
            BACK_TO_SEARCH: _address("start"),
            PREVIOUS_PAGE: _address("results", words=address["words"], number=address["number"]),
        }
        parts = [*self._instruction(), *_labels(clickables)]
        for name, values in product.options.items():
            parts += [name, *(f"{value} (chosen)" if chosen.get(name) == value else value for value in values)]
            clickables |= {value: _address("product", **base, chosen={**chosen, name: value}) for value in values}
        clickables |= {name: _address(name, **base, chosen=chosen) for name in _SUB_PAGES}
        clickables[BUY] = _address("done", **base, chosen=chosen)
        parts += [product.title, f"Price: ${product.price:.2f}", "Rating: N.A.", *_labels(_SUB_PAGES), "Buy Now"]
        return Page(tuple(parts), clickables)

    def _sub_page(self, name: str, address: Mapping[str, Any]) -> Page:
        product = products()[address["product"]]
        clickables = {BACK_TO_SEARCH: _address("start"), PREVIOUS_PAGE: _address(**{**address, "page": "product"})}
        texts = {
            "description": f"A {product.kind} of our {product.category} range.",
            "features": ", ".join(product.attributes),
            "reviews": "There are no reviews.",
        }
        return Page((*self._instruction(), *_labels(clickables), texts[name]), clickables)

    def _done(self, address: Mapping[str, Any]) -> Page:
        reward = self._goal.reward(products()[address["product"]], address["chosen"])
        parts = ("Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", f"{reward:.4f}")
        return Page(parts, reward=reward)


def find(words: str) -> list[Product]:
    """Return the products that share words with a search, those with the most common words first."""
    query = set(words.lower().replace(",", " ").split())
    counted = [(len(query & product.words), product) for product in products().values()]
    found = sorted((pair for pair in counted if pair[0]), key=lambda pair: (-pair[0], pair[1].number))
    return [product for _, product in found[:MAX_FOUND]]


def _address(page: str, **values: object) -> str:
    return json.dumps({"page": page, **values})


def _labels(names: Iterable[str]) -> list[str]:
    return [name.title() for name in names]

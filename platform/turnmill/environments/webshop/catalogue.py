"""Generated products of the small shop, and the goals of its shoppers."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

_CATEGORIES = {
    "kitchen": ("teapot", "frying pan", "bread box", "cutting board"),
    "clothing": ("rain jacket", "wool scarf", "running shirt", "winter hat"),
    "furniture": ("side table", "bookshelf", "desk lamp", "floor cushion"),
    "outdoor": ("tent", "water bottle", "hiking pole", "sleeping bag"),
}
_ATTRIBUTES = {
    "kitchen": ("dishwasher safe", "stainless steel", "bamboo", "non stick", "hand made"),
    "clothing": ("machine washable", "waterproof", "organic cotton", "lightweight", "windproof"),
    "furniture": ("solid wood", "easy to assemble", "space saving", "hand made", "foldable"),
    "outdoor": ("lightweight", "waterproof", "foldable", "leak proof", "insulated"),
}
_COLOURS = ("black", "white", "navy", "green", "red", "grey", "yellow")
_SIZES = {
    "kitchen": ("small", "large"),
    "clothing": ("small", "medium", "large", "x-large"),
    "furniture": ("compact", "standard"),
    "outdoor": ("one person", "two person"),
}
_BRANDS = ("Alder", "Birke", "Corvo", "Delmar", "Elst", "Fjord")
_PER_KIND = 12
_SEED = 20


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the small shop."""

    number: str
    kind: str
    category: str
    title: str
    price: float
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]

    @property
    def words(self) -> frozenset[str]:
        """Words by which a search finds the product."""
        named = " ".join((self.title, self.category, *self.attributes, *sum(self.options.values(), ())))
        return frozenset(named.lower().replace(",", " ").split())


@dataclass(frozen=True, slots=True)
class Goal:
    """The product that a shopper is asked to buy."""

    product: Product
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    highest_price: float

    @property
    def instruction(self) -> str:
        """The goal in words."""
        options = " and ".join(f"{name}: {value}" for name, value in self.options.items())
        return (
            f"I need a {self.product.kind} that is {' and '.join(self.attributes)}, with {options}, "
            f"and price lower than {self.highest_price:.2f} dollars"
        )

    def reward(self, bought: Product, chosen: Mapping[str, str]) -> float:
        """Return the fraction of requirements that a purchase fulfils, reduced for another kind of product."""
        met = sum(attribute in bought.attributes for attribute in self.attributes)
        met += sum(chosen.get(name) == value for name, value in self.options.items())
        met += bought.price <= self.highest_price
        share = met / (len(self.attributes) + len(self.options) + 1)
        if bought.kind == self.product.kind:
            return share
        return share * (0.5 if bought.category == self.product.category else 0.1)


@cache
def products() -> dict[str, Product]:
    """Return all products by number."""
    rng = random.Random(_SEED)
    kinds = [(category, kind) for category, kinds in _CATEGORIES.items() for kind in kinds] * _PER_KIND
    return {number: _product(rng, number, *kind) for number, kind in zip(_numbers(len(kinds)), kinds, strict=True)}


def draw_goal(seed: int) -> Goal:
    """Draw the goal of a seed; at least one product fulfils it completely."""
    rng = random.Random(seed)
    product = rng.choice([*products().values()])
    return Goal(
        product,
        attributes=tuple(rng.sample(product.attributes, 2)),
        options={name: rng.choice(values) for name, values in product.options.items()},
        highest_price=10.0 * (product.price // 10 + rng.randint(1, 3)),
    )


def _numbers(count: int) -> list[str]:
    return [f"b{index:04d}" for index in range(1, count + 1)]


def _product(rng: random.Random, number: str, category: str, kind: str) -> Product:
    attributes = tuple(rng.sample(_ATTRIBUTES[category], 3))
    return Product(
        number,
        kind,
        category,
        title=f"{rng.choice(_BRANDS)} {kind}, {', '.join(attributes)}",
        price=rng.randint(800, 9900) / 100,
        attributes=attributes,
        options={
            "color": tuple(rng.sample(_COLOURS, 3)),
            "size": tuple(_SIZES[category]),
        },
    )

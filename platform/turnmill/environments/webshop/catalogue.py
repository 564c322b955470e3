"""The goods of the small shop, made by rule, and what its shoppers are sent to buy."""

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
    """Something to buy."""

    number: str
    kind: str
    category: str
    title: str
    price: float
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]

    @property
    def words(self) -> frozenset[str]:
        """What a search finds it by."""
        named = " ".join((self.title, self.category, *self.attributes, *sum(self.options.values(), ())))
        return frozenset(named.lower().replace(",", " ").split())


@dataclass(frozen=True, slots=True)
class Goal:
    """What a shopper is sent to buy."""

    product: Product
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    highest_price: float

    @property
    def instruction(self) -> str:
        """In words."""
        options = " and ".join(f"{name}: {value}" for name, value in self.options.items())
        return (
            f"I need a {self.product.kind} that is {' and '.join(self.attributes)}, with {options}, "
            f"and price lower than {self.highest_price:.2f} dollars"
        )

    def reward(self, bought: Product, chosen: Mapping[str, str]) -> float:
        """The share of wishes that a purchase fulfils, less for another kind of thing."""
        met = sum(attribute in bought.attributes for attribute in self.attributes)
        met += sum(chosen.get(name) == value for name, value in self.options.items())
        met += bought.price <= self.highest_price
        share = met / (len(self.attributes) + len(self.options) + 1)
        if bought.kind == self.product.kind:
            return share
        return share * (0.5 if bought.category == self.product.category else 0.1)


@cache
def products() -> dict[str, Product]:
    """Everything on the shelves, by number."""
    chance = random.Random(_SEED)
    kinds = [(category, kind) for category, kinds in _CATEGORIES.items() for kind in kinds] * _PER_KIND
    return {number: _product(chance, number, *kind) for number, kind in zip(_numbers(len(kinds)), kinds, strict=True)}


def draw_goal(seed: int) -> Goal:
    """What the shopper of a seed is sent to buy; there is always something that fulfils all of it."""
    chance = random.Random(seed)
    product = chance.choice([*products().values()])
    return Goal(
        product,
        attributes=tuple(chance.sample(product.attributes, 2)),
        options={name: chance.choice(values) for name, values in product.options.items()},
        highest_price=10.0 * (product.price // 10 + chance.randint(1, 3)),
    )


def _numbers(count: int) -> list[str]:
    return [f"b{index:04d}" for index in range(1, count + 1)]


def _product(chance: random.Random, number: str, category: str, kind: str) -> Product:
    attributes = tuple(chance.sample(_ATTRIBUTES[category], 3))
    return Product(
        number,
        kind,
        category,
        title=f"{chance.choice(_BRANDS)} {kind}, {', '.join(attributes)}",
        price=chance.randint(800, 9900) / 100,
        attributes=attributes,
        options={
            "color": tuple(chance.sample(_COLOURS, 3)),
            "size": tuple(_SIZES[category]),
        },
    )

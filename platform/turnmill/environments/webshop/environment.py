"""WebShop: find and buy what an instruction asks for."""

import re
from typing import ClassVar

from pydantic import Field

from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register
from turnmill.environments.webshop.original import OriginalShop
from turnmill.environments.webshop.pages import Page, Shop
from turnmill.environments.webshop.small_shop import SmallShop

NOTHING = ""
"""The action of a response that can be done on no page."""

_ACTION = re.compile(r"(search|click)\[([^\[\]]{1,500})\]")


class WebShopOptions(EnvironmentOptions):
    """Which shop."""

    url: str | None = None
    """Address of an original WebShop that runs somewhere; left out, a small shop of turnmill's own."""

    num_goals: int = Field(default=500, ge=1)
    """Goals of the shop at `url`; seeds count through them."""

    request_timeout_seconds: float = Field(default=10, gt=0)
    """Time that the shop at `url` may take for a page."""


@register
class WebShop(Environment):
    """One purchase: search, look, choose, buy."""

    name: ClassVar[str] = "webshop"
    Settings: ClassVar[type[EnvironmentOptions]] = WebShopOptions
    actions = ()
    default_action = NOTHING

    def __init__(self, task: str | None, max_turns: int, options: WebShopOptions) -> None:
        super().__init__(task, max_turns, options)
        self._shop: Shop = SmallShop()
        if options.url is not None:
            self._shop = OriginalShop(
                options.url, num_goals=options.num_goals, timeout_seconds=options.request_timeout_seconds
            )
        self.page = Page(())
        """What the shopper sees."""

    def reset(self, seed: int) -> str:
        """Enter the shop with the wish of a seed."""
        self.page = self._shop.start(seed)
        return self._tell()

    def step(self, action: str) -> StepResult:
        """Search or click."""
        if action == NOTHING:
            return StepResult(self._tell(), info=_info(effective=False))
        kind, _, argument = action.partition("[")
        argument = argument.removesuffix("]")
        self.page = (
            self._shop.search(self.page, argument) if kind == "search" else self._shop.click(self.page, argument)
        )
        reward = self.page.reward
        if reward is None:
            return StepResult(self._tell(), info=_info())
        return StepResult(self.page.text, reward, terminated=True, info=_info(bought=True, reward=reward))

    def instruction_prompt(self) -> str:
        """Explain the pages and the form of actions."""
        return (
            "You are browsing an online shop. Find the product that the instruction describes, choose its options and "
            "buy it.\n\n"
            "Your actions are search[keywords], on the search page, and click[what it says], on anything that can be "
            "clicked: the number of a product, an option such as its color or size, description, features, next >, "
            "< prev, back to search, and buy now, which ends the visit. With every page you are told what can be done "
            "on it.\n\n"
            "You are judged by how much of the instruction your purchase fulfils: the kind of thing, its properties, "
            "its options and its price."
        )

    def compact_prompt(self) -> str:
        """State the goal."""
        return "goal: buy what the instruction asks for"

    def match_action(self, answer: str) -> str | None:
        """`search[...]` or `click[...]`, if it can be done on the page."""
        found = _ACTION.fullmatch(answer.strip().lower())
        if found is None:
            return None
        kind, argument = found[1], found[2].strip()
        possible = self.page.search_address is not None if kind == "search" else argument in self.page.clickables
        return f"{kind}[{argument}]" if possible and argument else None

    def _tell(self) -> str:
        return f"{self.page.text}\nAvailable actions: {', '.join(self.page.actions)}"


def _info(*, effective: bool = True, bought: bool = False, reward: float = 0.0) -> dict[str, float]:
    return {"success": float(bought and reward == 1.0), "action_is_effective": float(effective)}

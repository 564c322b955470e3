"""WebShop: find and buy the product that an instruction describes."""

import re
from typing import ClassVar

from pydantic import Field

from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register
from turnmill.environments.webshop.original import OriginalShop
from turnmill.environments.webshop.pages import Page, Shop
from turnmill.environments.webshop.small_shop import SmallShop

NOTHING = ""
"""Action of a response without a possible action."""

_ACTION = re.compile(r"(search|click)\[([^\[\]]{1,500})\]")


class WebShopOptions(EnvironmentOptions):
    """Address of the shop."""

    url: str | None = None
    """Address of an original WebShop server; if omitted, a small built-in shop is used."""

    num_goals: int = Field(default=500, ge=1)
    """Goals of the server at `url`; a seed selects one of them, modulo this number."""

    request_timeout_seconds: float = Field(default=10, gt=0)
    """Time that the server at `url` may take for a page."""


@register
class WebShop(Environment):
    """WebShop (Yao et al., 2022): one purchase per episode."""

    name: ClassVar[str] = "webshop"
    tasks: ClassVar[tuple[str, ...] | None] = ()
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
        """Present page."""

    def reset(self, seed: int) -> str:
        """Open the search page with the goal of a seed."""
        self.page = self._shop.start(seed)
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Search or click."""
        if action == NOTHING:
            return StepResult(self._observation(), info=_info(effective=False))
        kind, _, argument = action.partition("[")
        argument = argument.removesuffix("]")
        self.page = (
            self._shop.search(self.page, argument) if kind == "search" else self._shop.click(self.page, argument)
        )
        reward = self.page.reward
        if reward is None:
            return StepResult(self._observation(), info=_info())
        return StepResult(self.page.text, reward, terminated=True, info=_info(bought=True, reward=reward))

    def instruction_prompt(self) -> str:
        """Return the prompt with the pages and the form of actions."""
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
        """Return the goal."""
        return "goal: buy what the instruction asks for"

    def match_action(self, answer: str) -> str | None:
        """Return `search[...]` or `click[...]`, if it is possible on the present page."""
        found = _ACTION.fullmatch(answer.strip().lower())
        if found is None:
            return None
        kind, argument = found[1], found[2].strip()
        possible = self.page.search_address is not None if kind == "search" else argument in self.page.clickables
        return f"{kind}[{argument}]" if possible and argument else None

    def _observation(self) -> str:
        return f"{self.page.text}\nAvailable actions: {', '.join(self.page.actions)}"


def _info(*, effective: bool = True, bought: bool = False, reward: float = 0.0) -> dict[str, float]:
    return {"success": float(bought and reward == 1.0), "action_is_effective": float(effective)}

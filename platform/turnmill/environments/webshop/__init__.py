"""WebShop: a small shop of our own behind its interface, or the original by its address."""

from turnmill.environments.webshop.environment import WebShop, WebShopOptions

__all__ = ["WebShop", "WebShopOptions"]

"""WebShop: a small built-in shop with WebShop's interface, or an original WebShop server."""

from turnmill.environments.webshop.environment import WebShop, WebShopOptions

__all__ = ["WebShop", "WebShopOptions"]

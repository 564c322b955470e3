"""Fakes for the tests of environments, tools and agent loops, by their authors; no other code imports them."""

"""Runs untrusted code: a forked child of a warm process, without rights, with limits, gone with all it started."""

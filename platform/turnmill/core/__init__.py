"""Basic types and functions of all packages; standard library only."""

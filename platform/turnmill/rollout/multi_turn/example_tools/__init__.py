"""Tools of the example jobs."""

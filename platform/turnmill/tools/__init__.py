"""Tools that agents call; a tool gets its state with each call and returns the changed state."""

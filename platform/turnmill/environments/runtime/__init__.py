"""The processes in which environments run, and the rules of an episode around each."""

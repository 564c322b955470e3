"""Words of the domain; standard library only."""

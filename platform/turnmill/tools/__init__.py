"""Tools that agents call: small classes in a registry, state in, result and state out."""

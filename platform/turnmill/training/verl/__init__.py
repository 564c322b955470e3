"""What verl is given: configuration, plug-ins, placement, engines and the transfer of weights."""

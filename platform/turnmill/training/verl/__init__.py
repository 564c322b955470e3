"""Everything that plugs into verl: configuration, plug-ins, placement, engines, weight transfer and patches."""

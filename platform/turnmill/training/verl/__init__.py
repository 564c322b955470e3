"""Extensions of verl: configuration, plug-ins, placement, engines, weight transfer and patches."""

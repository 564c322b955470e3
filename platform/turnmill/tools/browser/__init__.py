"""A browser without scripts or pictures: what the tool `text_browser` is made of."""

"""A browser without scripts and images, used by the tool `text_browser`."""

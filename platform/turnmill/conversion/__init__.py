"""Conversion of the settings of verl-tool, Verlog and GRL, as their scripts give them, to jobs."""

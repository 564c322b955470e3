"""The trainers: subclasses of those of verl, for rows per turn and for whole trajectories."""

"""Batches, losses and weights: verl, with turns."""

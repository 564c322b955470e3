"""Batches of a step: what the rows of a queue hold, their rewards and their metrics."""

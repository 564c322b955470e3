"""Batches of a step: rows read from the queue, with their rewards and metrics."""

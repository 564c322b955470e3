"""Supervised fine-tuning: conversations and trajectories as token ids, and verl's engine trained on them."""

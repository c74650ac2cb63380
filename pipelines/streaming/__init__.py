"""Micro-batches with a write-ahead plan: every row of a topic is in exactly one batch."""

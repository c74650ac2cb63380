"""The metrics: their table, and what is made of it."""

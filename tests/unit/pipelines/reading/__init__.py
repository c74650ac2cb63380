"""Entries into record batches."""

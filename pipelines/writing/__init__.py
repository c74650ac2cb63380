"""Rows of a table into messages, with bounded batches (I15)."""

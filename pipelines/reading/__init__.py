"""Planned ranges from bookies into Arrow record batches of bounded size (I15)."""

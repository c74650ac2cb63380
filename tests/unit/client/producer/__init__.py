"""A producer against a fake broker."""

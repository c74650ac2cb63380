"""The administration, as clients reach it."""

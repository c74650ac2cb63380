"""Stores entries: journal, caches, entry logs, index, fences."""

"""Producers and consumers that stay open between REST requests, bounded in number (I15)."""

"""``helio``: the command line."""

from heliograph.cli.app import main

__all__ = ["main"]

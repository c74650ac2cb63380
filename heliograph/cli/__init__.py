"""``helio``: the command line."""

from heliograph.cli.start import main

__all__ = ["main"]

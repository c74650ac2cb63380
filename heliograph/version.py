"""Which version this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "heliograph-ray"


def heliograph_version() -> str:
    """The installed version; ``unknown`` when run from a tree that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"

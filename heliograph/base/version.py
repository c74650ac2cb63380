"""The version of the installed distribution."""

from __future__ import annotations

DISTRIBUTION = "heliograph-ray"


def heliograph_version() -> str:
    """Return the installed version; ``unknown`` if the sources are not installed."""
    from importlib.metadata import PackageNotFoundError, version  # loading it takes longer than most commands

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"

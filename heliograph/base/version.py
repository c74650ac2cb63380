"""The installed distribution: its version, and the extras that install what a plain one lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from heliograph.base.errors import ResourceError

DISTRIBUTION = "heliograph-ray"
EXTRAS = {  # by the packages that they install
    **dict.fromkeys(("ray", "kazoo", "etcd3", "grpc"), "cluster"),
    **dict.fromkeys(("pyspark", "raydp", "pyarrow", "pandas", "fastavro", "numpy"), "spark"),
}


def heliograph_version() -> str:
    """Return the installed version; ``unknown`` if the sources are not installed."""
    from importlib.metadata import PackageNotFoundError, version  # loading it takes longer than most commands

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def install_advice(missing: ImportError) -> str:
    """Return what installs the package whose import failed; empty if no extra of ours does."""
    package = (missing.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    return f"this needs {package}: pip install '{DISTRIBUTION}[{extra}]'" if extra else ""


@contextmanager
def extra_required() -> Iterator[None]:
    """Say for imports in the block which extra installs a package that is missing.

    Raises:
        ResourceError: a package of one of our extras is missing; names the extra.
    """
    try:
        yield
    except ImportError as error:
        if advice := install_advice(error):
            raise ResourceError(advice) from error
        raise

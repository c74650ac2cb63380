"""The version of this code, which versions may meet in one cluster, and the extras of the installed distribution."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from heliograph.base.errors import BadRequestError, ResourceError, UnsupportedError, VersionMismatchError

K = TypeVar("K", bound=type[Any])

VERSION = "0.1.0"  # of this code; pyproject.toml has the same. Running code keeps it, whatever was installed since.
DISTRIBUTION = "heliograph-ray"
EXTRAS = {  # by the packages that they install
    **dict.fromkeys(("ray", "kazoo", "etcd3", "grpc"), "cluster"),
    **dict.fromkeys(("pyspark", "raydp", "pyarrow", "pandas", "fastavro", "numpy"), "spark"),
}

# Which versions may meet in one cluster: those of one minor version, and those of neighbours. Minor versions of one
# major version are neighbours by their numbers. The last of a major version and the first of the next are neighbours,
# too: this table has the last one of each major version that is finished.
LAST_MINORS: Mapping[int, int] = {}
MINORS_APART_MAX = 1

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?!\d)")
_VERSION_LINE = re.compile(r'^VERSION = "([^"]+)"', re.MULTILINE)  # of this file
_SHIFT = 10  # bits of each part of a version's number
_PART = (1 << _SHIFT) - 1


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """A version as numbers, each from 0 to 999. A suffix such as ``rc1`` is left out."""

    major: int
    minor: int
    patch: int = 0

    @property
    def number(self) -> int:
        """Return the release as one number below 2**30, as greetings carry it."""
        return self.major << 2 * _SHIFT | self.minor << _SHIFT | self.patch

    def meets(self, other: Release) -> bool:
        """Return whether parts of both may run in one cluster."""
        older, newer = sorted((self, other))
        if older.major == newer.major:
            return newer.minor - older.minor <= MINORS_APART_MAX
        is_next = newer.major == older.major + 1 and newer.minor == 0
        return is_next and LAST_MINORS.get(older.major) == older.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


UNSAID = Release(0, 1)  # of a peer whose greeting names no release: only this one did not


def heliograph_version() -> str:
    return VERSION


def own_release() -> Release:
    return release_of(VERSION)


def release_of(version: str) -> Release:
    """Return the release that a version belongs to.

    Raises:
        BadRequestError: it is no version.
    """
    if (found := _VERSION.match(version)) is None:
        raise BadRequestError(f"{version!r:.60} is no version", field="version", limit="such as 0.1.0")
    return Release(*(int(part or 0) for part in found.groups()))


def release_numbered(number: int) -> Release:
    """Return the release in a greeting; numbers that mean none are those of a peer that does not name its own."""
    if not 0 < number < 1 << 3 * _SHIFT:
        return UNSAID
    return Release(number >> 2 * _SHIFT, number >> _SHIFT & _PART, number & _PART)


def require_meeting(peer: Release, name: str) -> None:
    """Check that a peer's release and ours may be in one cluster.

    Args:
        name: of the peer, for the error.

    Raises:
        VersionMismatchError: they may not; names both.
    """
    if not peer.meets(own_release()):
        raise VersionMismatchError(
            f"{name} has version {peer}, and here is {own_release()}: they are more than {MINORS_APART_MAX} minor "
            "version apart, upgrade by one at a time",
            field="version",
            limit=f"{MINORS_APART_MAX} minor version apart",
        )


def install_advice(missing: ImportError) -> str:
    """Return the command that installs the package whose import failed; empty if no extra has it."""
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


def require_posix() -> None:
    """Check that a cluster can run on this system.

    Raises:
        UnsupportedError: it is Windows, where only the client runs.
    """
    if sys.platform == "win32":
        raise UnsupportedError("a cluster runs on Linux or macOS; on Windows only the client does: name one's address")


def methods_removed(*names: str) -> Callable[[K], K]:
    """Return a decorator of an actor's class that refuses methods which only release 0.1.0 has.

    Pickles of that release, by which Ray starts its actors again, name them.
    """

    def decorated(kind: K) -> K:
        for name in names:
            setattr(kind, name, _refused(f"{kind.__name__}.{name}"))
        return kind

    return decorated


def _refused(name: str) -> Callable[..., Any]:
    async def refused(self: Any, *arguments: Any, **options: Any) -> Any:
        raise UnsupportedError(f"{name} is a call of release 0.1.0: use helio of this release, {VERSION}")

    return refused


def installed_here() -> str:
    """Return the version that a process started now on this node would run; empty: it cannot be read. Blocks."""
    try:
        found = _VERSION_LINE.search(Path(__file__).read_text())
    except OSError:
        return ""
    return found[1] if found else ""

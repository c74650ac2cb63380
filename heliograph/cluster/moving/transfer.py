"""Work on the directories of a stopped bookie, done as Ray tasks on the nodes that have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from heliograph.actors.bookie.tools import copying
from heliograph.actors.bookie.tools.copying import Ahead, CopyReport, LocalSource, SourceFile
from heliograph.base.errors import HeliographError, ResourceError
from heliograph.cluster.labels import ADDRESS_RESOURCE

TASK_SHARE = 0.001  # of a node's resource for its address, which a task on it holds


class DistantSource:
    """Directories of another node; each call is a task there."""

    def __init__(self, address: str, directories: Sequence[Path]) -> None:
        self._address = address
        self._directories = directories

    def files(self) -> list[list[SourceFile]]:
        """Return the files of each directory, while no bookie has them locked."""
        found: list[list[SourceFile]] = on_node(self._address, _files, self._directories)
        return found

    def finished(self) -> list[list[SourceFile]]:
        """Return the files of each directory that are not written again."""
        found: list[list[SourceFile]] = on_node(self._address, _finished, self._directories)
        return found

    def read(self, number: int, path: str, offset: int, size: int) -> bytes:
        """Return bytes of a file."""
        found: bytes = on_node(self._address, _read, self._directories, number, path, offset, size)
        return found


def transfer_ahead(source_address: str, sources: Sequence[Path], address: str, targets: Sequence[Path]) -> Ahead:
    """Copy what a running bookie does not write again, as ``copying.copy_ahead`` does.

    Raises:
        HeliographError: as ``copying.copy_ahead`` raises.
    """
    ahead: Ahead = on_node(address, _transfer_ahead, source_address, tuple(sources), address, tuple(targets))
    return ahead


def transfer(
    source_address: str, sources: Sequence[Path], address: str, targets: Sequence[Path], ahead: Ahead = frozenset()
) -> CopyReport:
    """Copy directories of one node to paths of another or the same, as ``copying.copy`` does.

    Raises:
        HeliographError: as ``copying.copy`` raises.
        ResourceError: a disk failed, or a node is gone.
    """
    report: CopyReport = on_node(address, _transfer, source_address, tuple(sources), address, tuple(targets), ahead)
    return report


def retire(address: str, directories: Sequence[Path]) -> list[Path]:
    """Rename directories of a node, as ``copying.retire`` does."""
    found: list[Path] = on_node(address, copying.retire, tuple(directories))
    return found


def find_copies(address: str, bookie_id: str, roots: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Find directories on a node, as ``copying.find_copies`` does."""
    found: tuple[list[Path], list[Path]] = on_node(address, copying.find_copies, bookie_id, tuple(roots))
    return found


def on_node(address: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function on the node at ``address``, and return its result.

    Raises:
        HeliographError: the function raised it.
        ResourceError: a disk failed, or the node is gone.
    """
    task = ray.remote(num_cpus=0, max_retries=0, resources={f"{ADDRESS_RESOURCE}{address}": TASK_SHARE})(function)
    try:
        return ray.get(task.remote(*arguments))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HeliographError):
            raise error.cause from error
        if isinstance(error.cause, OSError):
            raise ResourceError(f"on {address}: {error.cause}", field="to") from error
        raise
    except ray.exceptions.RayError as error:
        raise ResourceError(f"the node at {address} is gone: {error}", field="node") from error


def _transfer_ahead(source_address: str, sources: Sequence[Path], address: str, targets: Sequence[Path]) -> Ahead:
    is_local = source_address == address
    return copying.copy_ahead(LocalSource(sources) if is_local else DistantSource(source_address, sources), targets)


def _transfer(
    source_address: str, sources: Sequence[Path], address: str, targets: Sequence[Path], ahead: Ahead
) -> CopyReport:
    if source_address != address:
        return copying.copy(DistantSource(source_address, sources), targets, ahead=ahead)
    local = LocalSource(sources)
    with local.held():
        return copying.copy(local, targets, ahead=ahead)


def _finished(directories: Sequence[Path]) -> list[list[SourceFile]]:
    return LocalSource(directories).finished()


def _files(directories: Sequence[Path]) -> list[list[SourceFile]]:
    source = LocalSource(directories)
    with source.held():
        return source.files()


def _read(directories: Sequence[Path], number: int, path: str, offset: int, size: int) -> bytes:
    return LocalSource(directories).read(number, path, offset, size)

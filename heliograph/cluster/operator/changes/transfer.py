"""Work on the directories of a bookie that moves, done as Ray tasks on the nodes that have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from heliograph.actors.bookie.tools import copying
from heliograph.actors.bookie.tools.copying import Ahead, CopyReport, LocalSource, SourceFile
from heliograph.base.errors import HeliographError, ResourceError
from heliograph.cluster.diagnosis import living_nodes, reason
from heliograph.cluster.labels import ADDRESS_RESOURCE

LOOK_SECONDS = 10.0  # between two looks whether the node of a task is still there
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
        found: bytes = on_node(self._address, _read, self._directories, number, path, offset, size)
        return found


def on_node(address: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function on the node at ``address``, and return its result.

    Raises:
        HeliographError: the function raised it.
        ResourceError: a disk failed, or the node is gone.
    """
    task = ray.remote(num_cpus=0, max_retries=0, resources={f"{ADDRESS_RESOURCE}{address}": TASK_SHARE})(function)
    call = task.remote(*arguments)
    while not ray.wait([call], timeout=LOOK_SECONDS)[0]:
        if address not in (node.address for node in living_nodes()):  # else the task waits for it without end
            ray.cancel(call)
            raise ResourceError(f"the node at {address} is gone", field="node")
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HeliographError):
            raise error.cause from error
        raise ResourceError(f"on {address}: {reason(error)}", field="to") from error
    except ray.exceptions.RayError as error:
        raise ResourceError(f"the node at {address} is gone: {reason(error)}", field="node") from error


def copy_ahead(source_address: str, sources: Sequence[Path], address: str, targets: Sequence[Path]) -> Ahead:
    """Copy the files that a running bookie does not change any more to this node, which is at ``address``.

    Raises:
        HeliographError: as ``copying.copy_ahead`` raises.
    """
    is_local = source_address == address
    with copying.alone(targets):
        return copying.copy_ahead(LocalSource(sources) if is_local else DistantSource(source_address, sources), targets)


def copy(
    source_address: str, sources: Sequence[Path], address: str, targets: Sequence[Path], ahead: Ahead
) -> CopyReport:
    """Copy directories of a stopped bookie to this node, which is at ``address``.

    Raises:
        HeliographError: as ``copying.copy`` raises.
        ResourceError: a disk failed, or the other node is gone.
    """
    with copying.alone(targets):
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

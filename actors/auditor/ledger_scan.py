"""Scans of metadata: the records of all ledgers, or of another kind, with a bounded number of reads at once (I15)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from heliograph.metadata import paths
from heliograph.metadata.errors import NoNodeError, RecordError
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.parents import child_pages, children_if_any
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

R = TypeVar("R")
T = TypeVar("T")
OnUnreadable = Callable[[str, RecordError], None]  # path, why

PATHS_AT_ONCE_MAX = 1_000  # for which tasks are made in one step of the event loop: about 10 ms (I24)


async def scan_ledgers(store: MetadataStore, reads_at_once_max: int) -> AsyncIterator[list[LedgerMetadata]]:
    """Yield the records of all ledgers, a page at a time. Those created or deleted meanwhile may be among them or not.

    Raises:
        MetadataError: the scan is incomplete; nothing may be concluded from it.
    """
    gate = asyncio.Semaphore(reads_at_once_max)
    for high in await _children(store, paths.LEDGERS, gate):
        for directory in await _children(store, high, gate):
            with contextlib.suppress(NoNodeError):  # deleted meanwhile
                async for names in child_pages(store, directory):
                    wanted = [f"{directory}/{name}" for name in names]
                    records = await read_records(store, wanted, LedgerMetadata, gate)
                    yield [record for record in records if record is not None]


async def read_records(
    store: MetadataStore,
    wanted: Sequence[str],
    kind: type[R],
    gate: asyncio.Semaphore,
    on_unreadable: OnUnreadable | None = None,
) -> list[R | None]:
    """Return the records at some paths, at most PATHS_AT_ONCE_MAX; None stands for one that does not exist.

    Args:
        gate: bounds the reads at once.
        on_unreadable: called with each record that is damaged or of a newer version, for which None stands, too. The
            caller may conclude nothing from the lack of a record. Without it such a record is an error.

    Raises:
        MetadataError: nothing may be concluded.
    """
    return await asyncio.gather(*[_read(store, path, kind, gate, on_unreadable) for path in wanted])


async def scan_records(
    store: MetadataStore,
    root: str,
    depth: int,
    kind: type[R],
    reads_at_once_max: int,
    on_unreadable: OnUnreadable | None = None,
) -> dict[str, R]:
    """Return the records ``depth`` levels below ``root`` by their path below it, in the order of the numbers in it.

    Args:
        on_unreadable: as of ``read_records``.

    Raises:
        MetadataError: the scan is incomplete; nothing may be concluded from it.
    """
    gate = asyncio.Semaphore(reads_at_once_max)
    leaves = [root]
    for _ in range(depth):
        below: list[str] = []
        async for _, groups in _asked(leaves, lambda path: _children(store, path, gate)):
            for group in groups:
                below += group
        leaves = below
    found: dict[str, R] = {}
    async for some, records in _asked(leaves, lambda path: _read(store, path, kind, gate, on_unreadable)):
        pairs = zip(some, records, strict=True)
        found.update((path.removeprefix(f"{root}/"), record) for path, record in pairs if record is not None)
    return found


async def _asked(
    paths: Sequence[str], ask: Callable[[str], Coroutine[Any, Any, T]]
) -> AsyncIterator[tuple[Sequence[str], list[T]]]:
    """Yield paths with their answers, in order, some at a time."""
    for first in range(0, len(paths), PATHS_AT_ONCE_MAX):
        some = paths[first : first + PATHS_AT_ONCE_MAX]
        yield some, await asyncio.gather(*map(ask, some))


async def _children(store: MetadataStore, path: str, gate: asyncio.Semaphore) -> list[str]:
    async with gate:
        return [f"{path}/{name}" for name in sorted(await children_if_any(store, path), key=_number)]


def _number(name: str) -> tuple[int, str]:
    return len(name), name  # as the numbers that names are


async def _read(
    store: MetadataStore, path: str, kind: type[R], gate: asyncio.Semaphore, on_unreadable: OnUnreadable | None
) -> R | None:
    async with gate:
        try:
            return (await read(store, path, kind)).record
        except NoNodeError:
            return None
        except RecordError as error:
            if on_unreadable is None:
                raise
            on_unreadable(path, error)
            return None

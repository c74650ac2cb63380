"""A metadata record that only its owner writes: if its version moved, another broker owns it.

Topic records and cursor records are such. The broker that takes a topic over writes each of them once, and from then on
every write of the previous owner fails (I13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata import codec
from heliograph.metadata.errors import (
    BadVersionError,
    ConnectionLossError,
    NoNodeError,
    RecordTooLargeError,
    SessionExpiredError,
)
from heliograph.metadata.model import Versioned
from heliograph.metadata.store import MetadataStore, Operation, Set, Stat, is_connected

R = TypeVar("R")
T = TypeVar("T")

ENDS_BYTES_MAX = 256  # by which the ends of its last ledgers make a record larger
RETRY_DELAY_S = 0.05  # after a write whose reply was lost; doubling
RETRY_DELAY_S_MAX = 2.0


class OwnedRecord(Generic[R]):
    """The owner's copy of a record, with the version that it has in the store."""

    def __init__(self, store: MetadataStore, path: str, versioned: Versioned[R]) -> None:
        self._store = store
        self.path = path
        self.record = versioned.record
        self._version = versioned.version
        self.had_children = True  # whether the node had some when it was last written or checked
        self._unanswered: list[bytes] = []  # values whose write was cancelled, or whose reply was lost, since the last

    @property
    def is_reachable(self) -> bool:
        """Whether the metadata store answers, as far as is known."""
        return is_connected(self._store)

    async def replace(self, record: R, also: Sequence[Operation] = ()) -> None:
        """Store a new record if no other owner has written since (I9). Calls must not overlap.

        While the store is silent the call waits, for as long as that takes: a write with an unknown outcome would look
        like the write of another owner. A call that is cancelled may have stored its record: then the next one raises,
        since ``record`` lacks it, and ``delete`` deletes.

        Args:
            also: done in the same write.

        Raises:
            RecordTooLargeError: it is above the limit of its kind, and larger than it was. Nothing was changed.
            NodeExistsError: of an operation in ``also``. Nothing was changed.
            ServiceNotReadyError: another owner wrote, the node is gone, or the store was closed.
        """
        value = self._encoded(record)
        delay = RETRY_DELAY_S
        while not await self._write(value, also):
            await asyncio.sleep(delay)
            delay = min(2 * delay, RETRY_DELAY_S_MAX)
        self.record = record

    async def check(self) -> None:
        """Check that no other owner has written. Must not overlap with ``replace``.

        Raises:
            ServiceNotReadyError: another owner wrote, the node is gone, or our session has expired.
            ConnectionLossError: the store cannot be reached.
        """
        try:
            stat = await self._store.exists(self.path)
        except SessionExpiredError as error:
            raise ServiceNotReadyError(f"{self.path} is not ours any more: {error}") from error
        if stat is None or stat.version != self._version:
            raise ServiceNotReadyError(f"{self.path} was written by another owner")
        self.had_children = stat.num_children > 0

    async def delete(self) -> None:
        """Delete the node if no other owner has written since.

        Raises:
            ServiceNotReadyError: another owner wrote.
        """
        try:
            try:
                await self._store.delete(self.path, self._version)
            except BadVersionError as error:
                await self._find_ours(error)
                await self._store.delete(self.path, self._version)
        except NoNodeError:
            return
        except (BadVersionError, SessionExpiredError) as error:
            raise ServiceNotReadyError(f"{self.path} is not ours any more: {error}") from error

    async def _write(self, value: bytes, also: Sequence[Operation]) -> bool:
        """Write the node. Return False if the outcome is not known."""
        try:
            try:
                stat = await self._set(value, also)
                self._version, self.had_children = stat.version, stat.num_children > 0
            except BadVersionError as error:
                if await self._find_ours(error) != value:  # ours, but ``record`` lacks what it says
                    raise ServiceNotReadyError(f"{self.path} was written by a call that was cancelled") from error
        except ConnectionLossError:
            self._unanswered.append(value)
            return False
        except asyncio.CancelledError:
            self._unanswered.append(value)
            raise
        except (NoNodeError, SessionExpiredError) as error:
            raise ServiceNotReadyError(f"{self.path} is not ours any more: {error}") from error
        self._unanswered.clear()
        return True

    def _encoded(self, record: R) -> bytes:
        try:
            return codec.encode(record, self.path)
        except RecordTooLargeError:  # of another version, which allowed more: it may be opened, and become smaller
            value = codec.encode(record, self.path, has_limit=False)
            if len(value) > len(codec.encode(self.record, self.path, has_limit=False)) + ENDS_BYTES_MAX:
                raise
            return value

    async def _set(self, value: bytes, also: Sequence[Operation]) -> Stat:
        if not also:
            return await self._store.set(self.path, value, self._version)
        stat, *_ = await self._store.multi([Set(self.path, value, self._version), *also])
        assert isinstance(stat, Stat), "a set returns the stat"
        return stat

    async def _find_ours(self, refused: BadVersionError) -> bytes:
        """Return the newest value, which a write of ours has stored whose reply did not come, and take its version.

        Raises:
            ServiceNotReadyError: another owner wrote.
        """
        found, stat = await self._store.get(self.path) if self._unanswered else (b"", None)
        if stat is None or found not in self._unanswered or stat.version != self._version + 1:
            raise ServiceNotReadyError(f"{self.path} was written by another owner") from refused
        self._version, self.had_children = stat.version, stat.num_children > 0
        self._unanswered.clear()
        return found


async def take_over(
    store: MetadataStore, path: str, record_type: type[R], load: Callable[[R], Awaitable[T]]
) -> tuple[OwnedRecord[R], T]:
    """Become the owner of a record, and load its ledgers.

    The record is written back unchanged, so that its version moves and every later write of the previous owner fails
    (I13). If it changed while ``load`` ran, everything is loaded again.

    Args:
        load: fences and reads the ledgers of the record.

    Raises:
        NoNodeError: there is no such record. Else what ``load`` raises; the record is unchanged then.
    """
    while True:
        value, stat = await store.get(path)
        record = codec.decode(record_type, value)
        loaded = await load(record)
        try:
            stat = await store.set(path, value, stat.version)
        except BadVersionError:
            continue
        return OwnedRecord(store, path, Versioned(record, stat.version)), loaded

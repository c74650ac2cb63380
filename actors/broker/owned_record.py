"""A record in metadata that only its owner writes, so a version that moved means that the owner is another one.

Topic records and cursor records are such: whoever takes a topic over writes each of them once, and from then on every
write of the previous owner fails (I13).
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from heliograph.errors import ServiceNotReadyError
from metadata import codec
from metadata.errors import BadVersionError, ConnectionLossError, NoNodeError, SessionExpiredError
from metadata.model import Versioned
from metadata.store import MetadataStore

R = TypeVar("R")

ATTEMPTS_MAX = 8  # of one write whose reply is lost again and again
RETRY_DELAY_S = 0.05  # doubling


class OwnedRecord(Generic[R]):
    """The owner's copy of a record and the version that it must have in the store."""

    def __init__(self, store: MetadataStore, path: str, versioned: Versioned[R]) -> None:
        self._store = store
        self.path = path
        self.record = versioned.record
        self._version = versioned.version

    async def replace(self, record: R) -> None:
        """Store a new record, if nobody else has written since (I9). Calls must not overlap.

        Raises:
            ServiceNotReadyError: another owner wrote, the node is gone, or our session is over.
            ConnectionLossError: the store cannot be reached; the outcome is unknown, the owner must give up.
        """
        value = codec.encode(record)
        delay = RETRY_DELAY_S
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                stat = await self._store.set(self.path, value, self._version)
                self._version = stat.version
                break
            except ConnectionLossError:
                if attempt == ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(delay)
                delay *= 2
            except BadVersionError as error:
                if attempt == 1 or not await self._is_ours(value):
                    raise ServiceNotReadyError(f"{self.path} was written by another owner") from error
                break
            except (NoNodeError, SessionExpiredError) as error:
                raise ServiceNotReadyError(f"{self.path} is not ours any more: {error}") from error
        self.record = record

    async def check(self) -> None:
        """Look whether it is still ours. Must not overlap with ``replace``.

        Raises:
            ServiceNotReadyError: another owner wrote, the node is gone, or our session is over.
            ConnectionLossError: the store cannot be reached.
        """
        try:
            stat = await self._store.exists(self.path)
        except SessionExpiredError as error:
            raise ServiceNotReadyError(f"{self.path} is not ours any more: {error}") from error
        if stat is None or stat.version != self._version:
            raise ServiceNotReadyError(f"{self.path} was written by another owner")

    async def delete(self) -> None:
        """Delete the node, if nobody else has written since.

        Raises:
            ServiceNotReadyError: another owner wrote.
        """
        try:
            await self._store.delete(self.path, self._version)
        except NoNodeError:
            return
        except (BadVersionError, SessionExpiredError) as error:
            raise ServiceNotReadyError(f"{self.path} is not ours any more: {error}") from error

    async def _is_ours(self, value: bytes) -> bool:
        """After a lost reply: whether the write that was tried is what stands there now."""
        try:
            found, stat = await self._store.get(self.path)
        except NoNodeError:
            return False
        if found != value or stat.version != self._version + 1:
            return False
        self._version = stat.version
        return True

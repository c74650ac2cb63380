"""What the stores of all backends do alike: writes of one node, and telling of their session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from metadata.errors import NoNodeError
from metadata.parents import create_parents
from metadata.session_clock import SessionClock
from metadata.store import (
    ANY_VERSION,
    Create,
    Delete,
    MetadataStore,
    Operation,
    SessionListener,
    SessionState,
    Set,
    Stat,
)


class SingleWrites(MetadataStore, ABC):
    """The writes of one node, each a transaction of one operation."""

    @abstractmethod
    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """See MetadataStore."""

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        """See MetadataStore."""
        operation = Create(path, bytes(value), ephemeral, sequence)
        try:
            created = await self._write(operation)
        except NoNodeError:
            if not parents:
                raise
            await create_parents(self, path)
            created = await self._write(operation)
        assert isinstance(created, str), "create answers with a path"
        return created

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> Stat:
        """See MetadataStore."""
        stat = await self._write(Set(path, bytes(value), version))
        assert isinstance(stat, Stat), "set answers with a stat"
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See MetadataStore."""
        await self._write(Delete(path, version))

    async def _write(self, operation: Operation) -> str | Stat | None:
        (result,) = await self.multi([operation])
        return result


class SessionStore(SingleWrites):
    """A store whose session is kept by a clock."""

    def __init__(self, clock: SessionClock) -> None:
        self._clock = clock

    @property
    def session_id(self) -> int:
        """See MetadataStore."""
        return self._clock.session_id

    @property
    def session_timeout_ms(self) -> int:
        """See MetadataStore."""
        return round(self._clock.timeout * 1000)

    @property
    def state(self) -> SessionState:
        """See MetadataStore."""
        return self._clock.state

    def add_session_listener(self, listener: SessionListener) -> None:
        """See MetadataStore."""
        self._clock.add_listener(listener)

    def remove_session_listener(self, listener: SessionListener) -> None:
        """See MetadataStore."""
        self._clock.remove_listener(listener)

    def _check_session(self) -> None:
        if self._clock.state is SessionState.LOST:
            raise self._clock.over

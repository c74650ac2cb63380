"""Base classes of the stores of all backends: writes of one node, and the session's state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from typing_extensions import override

from heliograph.base.errors import BadRequestError
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.parents import create_parents
from heliograph.metadata.session.clock import SessionClock
from heliograph.metadata.store import (
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
    @override
    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        pass

    @override
    async def create(
        self,
        path: str,
        value: bytes | None = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
    ) -> str:
        operation = Create(path, _frozen(value), ephemeral, sequence)
        try:
            created = await self._write(operation)
        except NoNodeError:
            if not parents:
                raise
            await create_parents(self, path)
            created = await self._write(operation)
        assert isinstance(created, str), "create answers with a path"
        return created

    @override
    async def set(self, path: str, value: bytes | None, version: int = ANY_VERSION) -> Stat:
        stat = await self._write(Set(path, _frozen(value), version))
        assert isinstance(stat, Stat), "set answers with a stat"
        return stat

    @override
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write(Delete(path, version))

    async def _write(self, operation: Operation) -> str | Stat | None:
        (result,) = await self.multi([operation])
        return result


class SessionStore(SingleWrites):
    """A store whose session is kept by a clock."""

    def __init__(self, clock: SessionClock) -> None:
        self._clock = clock

    @property
    @override
    def session_id(self) -> int:
        return self._clock.session_id

    @property
    @override
    def session_timeout_ms(self) -> int:
        return round(self._clock.timeout * 1000)

    @property
    @override
    def state(self) -> SessionState:
        return self._clock.state

    @property
    @override
    def silent_seconds(self) -> float:
        return self._clock.silent_seconds

    @property
    @override
    def is_in_doubt(self) -> bool:
        return self._clock.is_in_doubt

    @override
    def add_session_listener(self, listener: SessionListener) -> None:
        self._clock.add_listener(listener)

    @override
    def remove_session_listener(self, listener: SessionListener) -> None:
        self._clock.remove_listener(listener)


def _frozen(value: bytes | None) -> bytes | None:
    """Return the value as bytes that its caller cannot change."""
    return None if value is None else bytes(value)


def parse_token(token: str) -> tuple[int, str]:
    """Split a session token into the session's id and its password.

    Raises:
        BadRequestError: the token is malformed.
    """
    number, _, password = token.partition(":")
    if not number.isdigit() or not password:
        raise BadRequestError("a session token looks like 'id:password'", field="token")
    return int(number), password

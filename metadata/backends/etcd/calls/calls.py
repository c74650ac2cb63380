"""The calls that the user of a session made and waits for."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.metadata.backends.etcd.transactions.observed_revisions import ObservedFamily, ObservedNode
from heliograph.metadata.backends.etcd.watching.cached_nodes import Revisions
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection
from heliograph.metadata.session.call_queue import Call
from heliograph.metadata.store import Operation


class ReadKind(enum.Enum):
    """The question of a read."""

    NODE = enum.auto()  # value and stat
    CHILDREN = enum.auto()  # names


@dataclass(frozen=True, slots=True)
class Page:
    """The kind of a read that asks for ``limit`` names of children at or after ``start``."""

    start: str
    limit: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A node at one revision of etcd. If its children were requested, only the node's revisions are known."""

    revision: int
    node: ObservedNode
    family: ObservedFamily
    count: int
    value: bytes | None = b""
    names: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether there is such a node."""
        return self.node.mod_revision > 0

    @property
    def revealed(self) -> int:
        """The newest revision that the result reveals, if the node exists."""
        return max(self.node.mod_revision, self.family.mod_revision)

    @property
    def known(self) -> Revisions | None:
        """The node's revisions, with which a watch compares later ones; None if there is no node."""
        if not self.exists:
            return None
        return Revisions(self.node.create_revision, self.node.mod_revision, self.family.mod_revision)


class EtcdRead(Call):
    """A read of one node. ``on_result`` runs before any later message of etcd is handled."""

    __slots__ = ("kind", "on_result", "path")

    def __init__(
        self,
        path: str,
        kind: ReadKind | Page,
        on_result: Callable[[ReadResult], None] | None,
        future: asyncio.Future[Any],
    ) -> None:
        super().__init__(future)
        self.path = path
        self.kind = kind
        self.on_result = on_result


class EtcdWrite(Call):
    """A transaction of the user. ``is_barrier``: it is answered after the watches were told of it."""

    __slots__ = ("is_barrier", "operations")

    def __init__(self, operations: Sequence[Operation], future: asyncio.Future[Any], *, is_barrier: bool) -> None:
        super().__init__(future)
        self.operations = operations
        self.is_barrier = is_barrier


class ExclusiveCall(Call):
    """A call that runs while no other call of the session is under way. ``run`` may be called twice."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[EtcdConnection], Awaitable[None]], future: asyncio.Future[Any]) -> None:
        super().__init__(future)
        self.run = run

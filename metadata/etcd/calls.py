"""What a session's user has asked for and waits for."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from heliograph.errors import HeliographError
from metadata.etcd.connection import Connection
from metadata.etcd.draft import Result
from metadata.etcd.seen import SeenFamily, SeenNode
from metadata.etcd.shadow import Revisions
from metadata.store import Operation

T = TypeVar("T")


class ReadKind(enum.Enum):
    """What of a node is asked for."""

    NODE = enum.auto()  # value and stat
    CHILDREN = enum.auto()  # names


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A node at one revision of etcd. Of a node whose children were asked for, only the revisions are known."""

    revision: int
    node: SeenNode
    family: SeenFamily
    count: int
    value: bytes = b""
    names: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether there is such a node."""
        return self.node.mod_revision > 0

    @property
    def revealed(self) -> int:
        """The newest change that whoever sees this knows of, if the node exists."""
        return max(self.node.mod_revision, self.family.mod_revision)

    @property
    def known(self) -> Revisions | None:
        """What a watch has to compare with later."""
        if not self.exists:
            return None
        return Revisions(self.node.create_revision, self.node.mod_revision, self.family.mod_revision)


@dataclass(eq=False, slots=True)
class Call(Generic[T]):
    """``began_at``: seconds, by the session's clock."""

    began_at: float
    future: asyncio.Future[T]

    @property
    def is_over(self) -> bool:
        """Whether it was answered, or its caller was cancelled."""
        return self.future.done()

    def answer(self, result: T) -> None:
        """Give the caller its result."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: HeliographError) -> None:
        """Raise an error at the caller."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(eq=False, slots=True)
class Read(Call[ReadResult]):
    """``on_result`` runs when the answer is there, before anything that etcd says later is looked at."""

    path: str
    kind: ReadKind
    on_result: Callable[[ReadResult], None] | None = None


@dataclass(eq=False, slots=True)
class Write(Call[list[Result]]):
    """A transaction of the user. ``is_barrier``: watchers are to be told when it has happened."""

    operations: Sequence[Operation]
    is_barrier: bool = False


@dataclass(eq=False, slots=True)
class Alone(Call[None]):
    """Something else, with nothing of the session under way beside it; may be done twice."""

    do: Callable[[Connection], Awaitable[None]]

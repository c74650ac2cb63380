"""The interface to Ray and to the actors that the operator needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from heliograph.cluster.operator.planning import Sight
from heliograph.cluster.operator.shortage import Shortage
from heliograph.metadata.operator_records import Roster
from heliograph.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class PartFacts:
    """A part's report of its process.

    Attributes:
        home: address of the Ray node that it runs on.
        starts: how often it was started in a row without serving for long.
        failure: why its latest start failed; empty if it did not.
        memory: that its process is above its budget; empty while it is not.
        address: at which it serves, as its start returned it; empty while it does not serve.
        metrics_address: URL of its own metrics, empty: it serves none.
        pid, installed, formats, open_files_max, skew_ms, round_ms: as ``PartReport`` has them.
    """

    version: str
    home: str
    starts: int = 0
    failure: str = ""
    memory: str = ""
    address: str = ""
    pid: int | None = None
    installed: str = ""
    formats: Mapping[str, int] = field(default_factory=dict)
    open_files_max: int = -1
    skew_ms: float = 0.0
    round_ms: float = 0.0
    metrics_address: str = ""


class ActorState(NamedTuple):
    """The state of a part's actor, in Ray's words, and whether the part answered the latest question."""

    state: str
    restarts: int
    is_answering: bool


class ClusterPort(Protocol):
    """Ray and the actors of one cluster. Calls that change something may be repeated."""

    async def sight(self, homes: Mapping[str, str]) -> Sight:
        """Return the nodes and the running parts. Raises ServiceNotReadyError if Ray does not answer."""

    async def facts(self, names: frozenset[str]) -> dict[str, PartFacts]:
        """Return the facts that parts report; parts that do not answer in time are left out."""

    async def actors(self, names: frozenset[str]) -> dict[str, ActorState]:
        """Return Ray's states of the actors of parts, after ``facts`` of the same parts."""

    async def memory_shortage(self) -> Shortage | None:
        """Return the latest time that Ray ended actors of parts because memory ran short; None: not lately."""

    async def create(self, name: str, roster: Roster) -> None:
        """Create the actor of a part. Raises HeliographError or an error of Ray if that fails."""

    async def started(self, name: str, seconds: float) -> str:
        """Wait for the start of a part; return why it does not serve, or nothing."""

    async def remove(self, name: str) -> None:
        """Stop a part, and wait until Ray has it no more. Nothing to do if there is none."""

    async def erase(self, name: str) -> bool:
        """Have a part stop and delete its directories; return False if it has no process that could.

        Raises:
            ServiceNotReadyError: it does not answer in time, or they cannot be deleted.
        """

    async def on_node(self, address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of ours on a node.

        Raises:
            ResourceError: a disk failed, or the node is gone.
            HeliographError: as the function raises.
        """

    async def shared(self) -> frozenset[str]:
        """Return the names of the parts that share a process."""

    async def replace_shared(self, names: Sequence[str], roster: Roster) -> None:
        """Have the shared process stop all its parts in good order and start again, with the installed code.

        Args:
            names: of all its parts but the operator; they are made by the present settings then.
        """

    async def ask(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of an actor.

        Raises:
            ServiceNotReadyError: there is no such actor, or it does not answer in time.
            HeliographError: as the method raises.
        """


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """The services that all changes of an operator share.

    Attributes:
        store: the metadata, in the operator's session.
        leading: returns the roster; raises ServiceNotReadyError if this operator does not lead.
        change: stores another roster.
        note: sets the note on a part, by its name; an empty text removes it.
        wrong: returns why a part does not serve, as far as it is known.
        ensemble_size: of namespaces that do not set their own.
        start_seconds: for a part to serve, and for the copies to be back.
    """

    store: MetadataStore
    cluster: ClusterPort
    leading: Callable[[], Awaitable[Roster]]
    change: Callable[[Callable[[Roster], Roster]], Awaitable[None]]
    note: Callable[[str, str], None]
    wrong: Callable[[str], str]
    ensemble_size: int
    start_seconds: float

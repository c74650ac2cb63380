"""The state that the effect runners of one client share: clock, connections to bookies and, if any, metadata."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from heliograph.actors.errors import BookieUnavailableError
from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.actors.ledger.driver.directory import BookieDirectory
from heliograph.actors.ledger.driver.placements import PLACEMENT, PlacementRegistry
from heliograph.actors.ledger.effects import Target
from heliograph.actors.ledger.pipeline import WindowRoom
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.wire.connections import BookieClient
from heliograph.actors.wire.grant import ReadGrant
from heliograph.actors.wire.group import BookieGroup
from heliograph.actors.wire.messages import BookieRequest
from heliograph.base.errors import AlreadyClosedError, HeliographError, InvalidConfigError
from heliograph.base.interval import until_tick
from heliograph.base.processes import end_process
from heliograph.base.tls.contexts import ClientTls, ClientTlsFiles
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)

NO_BODY = memoryview(b"")
ROUTES_MAX = 4_096  # sets of bookies whose connections a context knows (I15)
IDLE_SECONDS = 1.0  # between two looks for requests without an answer while no runner waits for one


Route = tuple[BookieGroup, Mapping[str, int]]  # to the bookies of an entry, and their positions


class Ticking(Protocol):
    """An effect runner whose core waits for time to pass. The context calls it from ``begin_ticking`` on."""

    rests_until: int  # time before which it need not be called, in ms on the context's clock

    def tick(self) -> bool:
        """Act on the passing of time. Called every ``tick_ms`` until it returns False."""

    def abort(self, error: HeliographError) -> None:
        """Fail everything without an outcome with ``error``, and send nothing more: the context is closed."""


class BookieContext:
    """Bookies and a clock, for cores that neither read nor change metadata."""

    def __init__(
        self,
        address_of: Callable[[str], str | None],
        config: LedgerClientConfig,
        on_broken: Callable[[BaseException], None] = end_process,
        grant: ReadGrant | None = None,
        authority: str = "",
        copies_entries: bool = True,
        nearby: Sequence[Collection[str]] = (),
    ) -> None:
        """Args:
        address_of: returns the ``host:port`` of a bookie, None if it is unknown.
        copies_entries: whether the small entries of a batch are copied out of the bookie's answer. Each entry that
            is not copied keeps the whole answer in memory.
        grant: the ledgers that this process may read, if it has no secret.
        authority: which signs the certificates of bookies, in PEM, where this process has no files of TLS.
        nearby: groups of bookies, the nearest first, that are asked before others that are as healthy.
        on_broken: called with an error that a core raised; by default the process ends.
        """
        self.config = config
        self.copies_entries = copies_entries
        self.health = BookieHealth(nearby)
        self.loop = asyncio.get_running_loop()
        files = ClientTlsFiles(ca_text=authority) if authority else config.tls.as_client if config.tls else None
        self.bookies = BookieClient(
            address_of,
            self.now,
            secret=grant or config.cluster_secret,
            on_broken=on_broken,
            tls=None if files is None else ClientTls(files),
            timeout_ms=config.request_timeout_ms,
        )
        self.routes: dict[tuple[Target, ...], Route] = {}  # those that ``route`` has returned
        self._groups: dict[tuple[str, ...], BookieGroup] = {}
        self.ticking: dict[Ticking, None] = {}  # an ordered set
        self.tasks: set[asyncio.Task[Any]] = set()
        self._on_broken = on_broken
        self._ended: str | None = None  # once closed: the reason
        self._has_ticking = asyncio.Event()  # set: a runner began to tick since it was cleared

    def now(self) -> int:
        """Return the milliseconds of a clock that never goes back."""
        return int(self.loop.time() * 1000)

    def spawn(self, coroutine: Any) -> None:
        """Run a coroutine in the background until it ends, or until the context is closed."""
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._on_task_end)

    def begin_ticking(self, runner: Ticking) -> None:
        """Tell a runner of the passing of time, until its ``tick`` returns False."""
        self.ticking[runner] = None
        self._has_ticking.set()

    def check_open(self) -> None:
        """Raise AlreadyClosedError once ``close`` was called."""
        if self._ended is not None:
            raise AlreadyClosedError(self._ended)

    async def close(self, why: str) -> None:
        """Fail every waiting runner with AlreadyClosedError, and end all tasks and connections."""
        self._ended = why
        for waiting in list(self.ticking):
            waiting.abort(AlreadyClosedError(why))
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.bookies.close()

    def route(self, targets: tuple[Target, ...]) -> Route:
        """Return the connections to the bookies of these targets, and the position of each of them."""
        route = self.routes.get(targets)
        if route is None:
            if len(self.routes) >= ROUTES_MAX:
                self.routes.clear()
            positions = {bookie_id: position for position, bookie_id in targets}
            route = self.routes[targets] = (self.group(tuple(positions)), positions)
        return route

    def group(self, bookie_ids: tuple[str, ...]) -> BookieGroup:
        """Return the connections to bookies that get the same entries and LACs, whatever their order."""
        group = self._groups.get(bookie_ids)
        if group is None:
            if len(self._groups) >= ROUTES_MAX:
                self._groups.clear()
            group = self._groups[bookie_ids] = self.bookies.group(tuple(sorted(bookie_ids)))
        return group

    def request(
        self,
        bookie_id: str,
        request: BookieRequest,
        body: bytes,
        on_answer: Callable[..., None],
        tag: Any,
    ) -> None:
        """Send a request. The answer comes later, in a call of ``on_answer(tag, answer, body)``."""
        connection = self.bookies.connection(bookie_id)
        if connection is None:
            self.answer_unreachable(bookie_id, on_answer, tag)
            return
        connection.request(request, body, on_answer, tag, self.config.request_timeout_ms)

    def answer_unreachable(self, bookie_id: str, on_answer: Callable[..., None], tag: Any) -> None:
        """Answer a request to a bookie that has no address."""
        error = BookieUnavailableError(f"bookie {bookie_id} is not registered and was never seen")
        self.loop.call_soon(on_answer, tag, error, NO_BODY)

    async def keep_time(self) -> None:
        """Expire requests and tell waiting runners the time, until cancelled.

        Without a runner there is nothing that time would change but the end of requests that nothing waits for.
        """
        while True:
            if not self.ticking:
                self._has_ticking.clear()
                with contextlib.suppress(TimeoutError):
                    # wait_for of Python 3.11 may lose a cancellation
                    async with asyncio.timeout(until_tick(IDLE_SECONDS)):
                        await self._has_ticking.wait()
            if self.ticking:
                await asyncio.sleep(self.config.tick_ms / 1000)
            now = self.now()
            self.bookies.expire(now)
            for waiting in list(self.ticking):
                if waiting.rests_until <= now and not waiting.tick():
                    self.ticking.pop(waiting, None)

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        """End the process if a task broke a promise of ours: its core would wait for ever for an answer."""
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, HeliographError):
            if self._ended is None:
                log.error("a background task of the ledger client failed: %s", error)
        elif error is not None:
            self._on_broken(error)


class DriverContext(BookieContext):
    """Bookies, a clock, and the metadata of ledgers."""

    def __init__(
        self,
        store: MetadataStore,
        directory: BookieDirectory,
        chooser: BookieChooser,
        placements: PlacementRegistry,
        config: LedgerClientConfig,
        on_broken: Callable[[BaseException], None] = end_process,
    ) -> None:
        super().__init__(directory.address_of, config, on_broken)
        self.store = store
        self.directory = directory
        self.chooser = chooser
        self.placements = placements
        self.window_room = WindowRoom()
        self._choosers: dict[str, BookieChooser] = {"": chooser}  # by the name of the policy

    def chooser_of(self, name: str) -> BookieChooser:
        """Return the chooser with the policy of that name, the client's own for an empty name.

        Raises:
            InvalidConfigError: this process has no such policy.
        """
        chooser = self._choosers.get(name)
        if chooser is None:
            chooser = self._choosers[name] = self.chooser.by(self.placements.get(name))
        return chooser

    def chooser_for(self, ledger: LedgerMetadata) -> BookieChooser:
        """Return the chooser with the ledger's policy, the client's own if this process has no such policy.

        A copy on any bookie is better than none.
        """
        try:
            return self.chooser_of(ledger.properties.get(PLACEMENT, ""))
        except InvalidConfigError as error:
            log.warning("ledger %d: %s", ledger.ledger_id, error)
            return self.chooser

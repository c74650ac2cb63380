"""What the shells of one process share: the clock, the connections to bookies, and, where there is one, metadata."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from actors.errors import BookieUnavailableError
from actors.ledger.chooser import BookieChooser
from actors.ledger.directory import BookieDirectory
from actors.ledger.driver.config import PLACEMENT, LedgerClientConfig, load_placement
from actors.ledger.health import BookieHealth
from actors.wire.broken import end_process
from actors.wire.client import BookieClient
from actors.wire.messages import Request
from heliograph.errors import AlreadyClosedError, HeliographError, InvalidConfigError
from metadata.model import LedgerMetadata
from metadata.store import MetadataStore

PLACEMENTS_MAX = 100  # policies kept ready; others are loaded anew each time

log = logging.getLogger(__name__)

NO_BODY = memoryview(b"")


class Ticking(Protocol):
    """Something that waits and wants to know the time."""

    def tick(self) -> bool:
        """Called every ``tick_ms``; whether it goes on waiting."""

    def abort(self, error: HeliographError) -> None:
        """The world ends: fail with ``error`` what has no outcome, and ask nothing more of it."""


class BookieWorld:
    """Bookies and a clock: enough for cores that neither read nor change metadata."""

    def __init__(
        self,
        address_of: Callable[[str], str | None],
        config: LedgerClientConfig,
        on_broken: Callable[[BaseException], None] = end_process,
    ) -> None:
        """Args:
        address_of: knows the ``host:port`` of a bookie, or None for one that it never heard of.
        on_broken: told of an error that a core raised; by default the process ends.
        """
        self.config = config
        self.health = BookieHealth()
        self.loop = asyncio.get_running_loop()
        self.bookies = BookieClient(address_of, self.now, secret=config.cluster_secret, on_broken=on_broken)
        self.ticking: dict[Ticking, None] = {}  # in order of arrival
        self.tasks: set[asyncio.Task[Any]] = set()
        self._on_broken = on_broken
        self._ended: str | None = None  # what to say once nothing may begin any more

    def now(self) -> int:
        """Milliseconds of a clock that never goes back."""
        return int(self.loop.time() * 1000)

    def spawn(self, coroutine: Any) -> None:
        """Run a coroutine that ends by itself, or with the world."""
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._on_task_end)

    def check_open(self) -> None:
        """Raise AlreadyClosedError once ``close`` was called."""
        if self._ended is not None:
            raise AlreadyClosedError(self._ended)

    async def close(self, why: str) -> None:
        """Fail all that waits with AlreadyClosedError, and end tasks and connections. Nothing begins afterwards."""
        self._ended = why
        for waiting in list(self.ticking):
            waiting.abort(AlreadyClosedError(why))
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.bookies.close()

    def request(
        self,
        bookie_id: str,
        request: Request,
        body: bytes,
        on_answer: Callable[..., None],
        context: Any,
        extra_ms: int = 0,
    ) -> None:
        """Send a request; the answer comes later, in a call of ``on_answer(context, answer, body)``."""
        connection = self.bookies.connection(bookie_id)
        if connection is None:
            self.answer_for_nobody(bookie_id, on_answer, context)
            return
        connection.request(request, body, on_answer, context, self.config.request_timeout_ms + extra_ms)

    def answer_for_nobody(self, bookie_id: str, on_answer: Callable[..., None], context: Any) -> None:
        """The answer to a request to a bookie that has no address."""
        error = BookieUnavailableError(f"bookie {bookie_id} is not registered and was never seen")
        self.loop.call_soon(on_answer, context, error, NO_BODY)

    async def keep_time(self) -> None:
        """The clock of all that wait; runs until it is cancelled."""
        while True:
            await asyncio.sleep(self.config.tick_ms / 1000)
            self.bookies.expire(self.now())
            for waiting in list(self.ticking):
                if not waiting.tick():
                    self.ticking.pop(waiting, None)

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        """A core that raised is not to be trusted; without its clock, or an answer, it would wait for ever."""
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, HeliographError):
            if self._ended is None:
                log.error("a task in the background failed: %s", error)
        elif error is not None:
            self._on_broken(error)


class World(BookieWorld):
    """Bookies, and the metadata of their ledgers."""

    def __init__(
        self,
        store: MetadataStore,
        directory: BookieDirectory,
        chooser: BookieChooser,
        config: LedgerClientConfig,
        on_broken: Callable[[BaseException], None] = end_process,
    ) -> None:
        super().__init__(directory.address_of, config, on_broken)
        self.store = store
        self.directory = directory
        self.chooser = chooser
        self._choosers: dict[str, BookieChooser] = {"": chooser}  # by the name of their policy

    def chooser_of(self, name: str) -> BookieChooser:
        """The chooser by a policy, the process's own for an empty name.

        Raises:
            InvalidConfigError: there is no such policy here.
        """
        chooser = self._choosers.get(name)
        if chooser is None:
            chooser = self.chooser.by(load_placement(name))
            if len(self._choosers) < PLACEMENTS_MAX:
                self._choosers[name] = chooser
        return chooser

    def chooser_for(self, ledger: LedgerMetadata) -> BookieChooser:
        """The chooser by the ledger's policy; the process's own where that policy is not to be had here, since a place
        for a copy is worth more than the best one."""
        try:
            return self.chooser_of(ledger.properties.get(PLACEMENT, ""))
        except InvalidConfigError as error:
            log.warning("ledger %d: %s", ledger.ledger_id, error)
            return self.chooser

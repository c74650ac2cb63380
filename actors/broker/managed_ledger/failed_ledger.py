"""The last ledger of a topic whose writer failed: it is ended and replaced, as often as that is tried.

While too few bookies take entries, or its record has no room, the topic refuses them and goes on by itself (I20). While
the metadata store is silent, they wait. After any other failure that lasts, the topic is abandoned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.base.backoff import Backoff
from heliograph.base.errors import HeliographError, PersistenceError, ServiceNotReadyError, TooFewBookiesError
from heliograph.metadata.errors import RecordTooLargeError

RECOVER_SECONDS_MAX = 30.0  # after a writer failed for another reason than a lack of bookies
RETRY_MS = 100  # first pause between attempts
RETRY_MS_MAX = 2_000
NO_ROOM = (
    TooFewBookiesError,
    RecordTooLargeError,
)  # no ledger can be made until bookies are back or something is deleted
log = logging.getLogger(__name__)


class FailedLedger:
    """The failed ledger of a topic; nothing while it has none.

    Attributes:
        refusal: why the topic refuses entries; None: they wait.
        has_end: the end of the failed ledger is stored, so what is pending is not in it.
    """

    def __init__(self, topic: str, ledgers: LedgersPort, on_refused: Callable[[HeliographError], None]) -> None:
        """
        Args:
            on_refused: called with ``refusal`` when entries are refused from now on, and at each attempt that found the
                end stored and too few bookies for the next ledger.
        """
        self.refusal: HeliographError | None = None
        self.has_end = False
        self._topic = topic
        self._ledgers = ledgers
        self._on_refused = on_refused
        self._warned = ""  # the last warning, which is not repeated

    def forget(self) -> None:
        """Note that the topic has no failed ledger any more."""
        self.refusal, self.has_end, self._warned = None, False, ""

    def warn(self, text: str) -> None:
        """Log a warning, unless it is the last one again: an attempt may fail for the same reason for hours."""
        if text != self._warned:
            log.warning("%s: %s", self._topic, text)
        self._warned = text

    async def replace(
        self, attempt: Callable[[], Awaitable[None]], copies: Callable[[], int], store_answers: Callable[[], bool]
    ) -> HeliographError | None:
        """Replace the ledger, in as many attempts as it takes.

        Args:
            copies: returns how many bookies have to take entries.
            store_answers: returns whether the metadata store answers. Nothing is abandoned for its silence.

        Returns:
            None, or the error for which the topic is to be abandoned.
        """
        deadline = time.monotonic() + RECOVER_SECONDS_MAX
        pauses = Backoff(RETRY_MS, RETRY_MS_MAX)
        while True:
            try:
                await attempt()
                return None
            except ServiceNotReadyError as error:
                return error
            except HeliographError as error:
                shortage = await self._shortage(error, copies())
                if shortage is not None:
                    is_new, self.refusal = self.refusal is None, shortage
                    if is_new or self.has_end:
                        self._on_refused(shortage)
                    deadline = time.monotonic() + RECOVER_SECONDS_MAX
                elif not store_answers():
                    deadline = time.monotonic() + RECOVER_SECONDS_MAX
                elif time.monotonic() > deadline:
                    return PersistenceError(f"{self._topic} cannot be written now: {error}")
                self.warn(f"the failed ledger cannot be replaced yet: {shortage or error}")
            await asyncio.sleep(pauses.pause())

    async def _shortage(self, error: HeliographError, copies: int) -> HeliographError | None:
        """Return why there is no room for a ledger, or too few bookies for its recovery, if that is why it failed."""
        if isinstance(error, NO_ROOM) or self.has_end:
            return error if isinstance(error, NO_ROOM) else None
        try:
            return await self._ledgers.shortage(copies)
        except HeliographError:  # the metadata store is silent too
            return None

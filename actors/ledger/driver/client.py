"""The client of ledgers: create, recover, open, delete, repair, check."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from heliograph.actors.errors import BookieError, NoSuchLedgerError, NotEnoughBookiesError
from heliograph.actors.ledger.deletion import DeletionCore
from heliograph.actors.ledger.driver.answers import one_entry
from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.actors.ledger.driver.context import DriverContext
from heliograph.actors.ledger.driver.directory import BookieDirectory
from heliograph.actors.ledger.driver.holes import HoleSearch
from heliograph.actors.ledger.driver.metadata_runner import MetadataOperation
from heliograph.actors.ledger.driver.operation import Operation
from heliograph.actors.ledger.driver.placements import PLACEMENT, PlacementRegistry
from heliograph.actors.ledger.driver.reader import LedgerReader
from heliograph.actors.ledger.driver.writer import LedgerWriter
from heliograph.actors.ledger.effects import CheckFinished, LedgerEntry, RecoveryFinished, RepairFinished, Reply
from heliograph.actors.ledger.inventory import CheckCore
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.placement.shortage import shortage
from heliograph.actors.ledger.recovery import RecoveryCore
from heliograph.actors.ledger.repair.core import RepairCore
from heliograph.actors.ledger.repair.window import RepairWindow
from heliograph.actors.ledger.schedule import is_vacancy, schedule_of
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest
from heliograph.base.clock import wall_ms
from heliograph.base.completion import shielded
from heliograph.base.errors import AlreadyClosedError, TooFewBookiesError, UnsupportedError
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import ConnectionLossError, NodeExistsError, NoNodeError
from heliograph.metadata.model import BookieRegistration, LedgerMetadata, Segment, Versioned, check_quorum
from heliograph.metadata.paths import BOOKIES_COOKIES
from heliograph.metadata.paths import ledger as ledger_path
from heliograph.metadata.recipes.ids import next_ledger_id
from heliograph.metadata.recipes.repair_tasks import mark_underreplicated
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore, is_connected
from heliograph.metrics.metric import Histogram

log = logging.getLogger(__name__)

VERSION_UNKNOWN = -1  # of a record that was not read
CREATE_ATTEMPTS_MAX = 5
DIGESTS = frozenset({"crc32c"})  # checksums of entries that this version can check
FAILED_LATELY_MS = 10_000  # as long as the session of a bookie that ended may last
_COPIES = {Reply.OK: "present", Reply.ABSENT: "missing", Reply.DAMAGED: "damaged"}  # what a bookie says of an entry
_SILENT = "no answer"
LAST_ENTRIES_MAX = 128  # that recoveries found, until they are read; their owners read them at once  # I15
LAST_ENTRY_BYTES_MAX = 32 << 10  # of such a one
ENDED_WRITERS_MAX = 100  # kept in memory, besides as many as there are open ones


class LedgerClient:
    """The ledgers of one process or broker. They share connections, the bookie directory and a clock."""

    def __init__(self, context: DriverContext) -> None:
        """Callers use ``start``."""
        self._context = context
        self._writers: dict[int, LedgerWriter] = {}
        self._forget_at = ENDED_WRITERS_MAX  # number of writers at which those that ended are forgotten
        self._recoveries: dict[int, asyncio.Task[LedgerMetadata]] = {}
        self._last_entries: dict[int, LedgerEntry] = {}
        counted = "ledgers_created ledgers_recovered ledgers_deleted ledgers_repaired entries_repaired bytes_repaired"
        self._counts = dict.fromkeys(counted.split(), 0) | {"ensemble_changes": 0}  # of writers that are forgotten
        self._holes = HoleSearch(context)
        self._repairs: list[RepairCore] = []  # those under way; one for each caller
        self._repair_window = RepairWindow(context.config.repair)
        self._is_closed = False

    @classmethod
    async def start(cls, store: MetadataStore, config: LedgerClientConfig | None = None) -> LedgerClient:
        """Read the bookie directory and start the clock.

        Raises:
            InvalidConfigError: a placement policy cannot be loaded, or there is none of the configured name.
            ConnectionLossError, SessionExpiredError: the store could not be reached.
        """
        config = config or LedgerClientConfig()
        placements = PlacementRegistry(config.placements)
        policy = placements.get(config.placement)
        chooser = BookieChooser(policy, random.Random(), config.quarantine, lambda: is_connected(store))
        directory = BookieDirectory(store)
        client = cls(DriverContext(store, directory, chooser, placements, config))
        directory.add_listener(client._on_bookies_changed)
        await directory.start()
        client._on_bookies_changed()
        client._context.spawn(client._context.keep_time())
        return client

    @property
    def placements(self) -> list[str]:
        """Return the names of the placement policies that this process has."""
        return self._context.placements.names

    @property
    def bookies(self) -> Mapping[str, BookieRegistration]:
        """Return the registrations of all bookies, writable and read-only, by bookie id."""
        return self._context.directory.registered

    @property
    def add_latencies(self) -> Mapping[str, Histogram]:
        """Return how long bookies take for adds, by bookie id."""
        return self._context.bookies.add_latencies

    @property
    def directory(self) -> BookieDirectory:
        return self._context.directory

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        properties: Mapping[str, str] | None = None,
        minimum_copies: int = 0,
    ) -> LedgerWriter:
        """Create a ledger and become its writer. A failed call may have left an empty ledger behind.

        While fewer than E bookies take entries the ledger is spread over those there are. While fewer than Qw do, it
        has vacancies, which its writer fills once there are bookies for them (I20).

        Args:
            properties: stored with the ledger. ``placement`` names the policy that chooses its bookies and their
                replacements.
            minimum_copies: how many bookies have to take each entry, if that is more than Qa; at most Qw.

        Raises:
            InvalidQuorumError: not E >= Qw >= Qa >= 1.
            TooFewBookiesError: fewer bookies take entries now than Qa, or than ``minimum_copies``.
            StorageFullError: the same, because disks are full.
            NotEnoughBookiesError: the placement policy requires more.
            InvalidConfigError: there is no such placement policy, or a user's policy broke its contract.
            MetadataError: the store could not be reached.
        """
        self._check_open()
        check_quorum(ensemble_size, write_quorum, ack_quorum)
        least = max(ack_quorum, min(minimum_copies, write_quorum))
        context = self._context
        chooser = context.chooser_of((properties or {}).get(PLACEMENT, ""))
        token = uuid.uuid4().hex
        for _ in range(CREATE_ATTEMPTS_MAX):
            try:
                bookies = chooser.choose_ensemble(ensemble_size, write_quorum, context.now(), least=least)
            except NotEnoughBookiesError as error:
                raise await self.shortage(least) or error from None
            record = LedgerMetadata(
                ledger_id=await next_ledger_id(context.store),
                ensemble_size=len(bookies),
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                segments=(Segment(0, bookies),),
                created_ms=wall_ms(),
                creator_token=token,
                properties=dict(properties or {}),
            )
            created = await self._create(record)
            self._check_open()
            if created is not None:
                self._counts["ledgers_created"] += 1
                writer = LedgerWriter(context, created, least)
                if len(self._writers) >= self._forget_at:
                    self._forget_ended_writers()
                self._writers[record.ledger_id] = writer
                return writer
        raise ConnectionLossError("the metadata store lost the reply of every attempt to create a ledger")

    async def shortage(self, copies: int) -> TooFewBookiesError | None:
        """Return the error for a lack of bookies that take entries; None if there are ``copies`` of them.

        A bookie that failed lately does not count: its registration may outlive it.

        Raises:
            MetadataError: the store could not be reached.
        """
        context = self._context
        directory, silent = context.directory, context.chooser.failed_since(context.now() - FAILED_LATELY_MS)
        usable = directory.writable.keys() - silent
        if len(usable) >= copies:
            return None
        known = await context.store.children(BOOKIES_COOKIES)
        return shortage(copies, usable, directory.writable, directory.readonly, known)

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence the ledger, find its end and close it. Idempotent. Concurrent calls for one ledger share the work.

        Returns:
            The CLOSED record, also if another client closed the ledger.

        Raises:
            NoSuchLedgerError: metadata does not know it.
            UnsupportedError: a newer version made the ledger, with a digest unknown here; nothing was fenced.
            LedgerRecoveryError: too few bookies answered to decide; the ledger stays IN_RECOVERY, try again later.
            MetadataError: the store could not be reached; try again later.
        """
        found = await self._readable(ledger_id)
        if found.record.is_closed:
            return found.record
        running = self._recoveries.get(ledger_id)
        if running is None:
            running = asyncio.get_running_loop().create_task(self._recover(found))
            self._recoveries[ledger_id] = running
            running.add_done_callback(partial(self._recovery_ended, ledger_id))
        return await shielded(running)

    async def open(self, ledger_id: int, known: LedgerMetadata | None = None) -> LedgerReader:
        """Open a reader, without recovery and without a fence.

        Args:
            known: the ledger's record as ``recover`` just returned it; None to read it. The reader reads it again when
                it finds no copy.

        Raises:
            NoSuchLedgerError: metadata does not know the ledger.
            MetadataError: the store could not be reached, or the record is damaged.
            UnsupportedError: a newer version made the ledger, with a digest unknown here.
        """
        found = await self._readable(ledger_id) if known is None else Versioned(known, VERSION_UNKNOWN)
        return LedgerReader(self._context, found, self._last_entries.pop(ledger_id, None))

    async def delete(self, ledger_id: int) -> None:
        """Delete the ledger's record. Bookies delete the data later. A ledger that is gone counts as deleted.

        Raises:
            ConnectionLossError: it may or may not be deleted; call again.
        """
        self._check_open()
        await MetadataOperation(self._context, DeletionCore(ledger_id)).result()
        self._counts["ledgers_deleted"] += 1

    async def metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """Return the ledger's record.

        Raises:
            NoSuchLedgerError: metadata does not know it.
            RecordError: the record is damaged, or written by a newer version.
            ConnectionLossError, SessionExpiredError: the store could not be reached.
        """
        try:
            return await read(self._context.store, ledger_path(ledger_id), LedgerMetadata)
        except NoNodeError as error:
            raise NoSuchLedgerError(
                f"ledger {ledger_id} is not in metadata: it was deleted, or its id is wrong", field="ledger_id"
            ) from error

    async def repair(
        self,
        ledger_id: int,
        missing_bookies: Collection[str],
        *,
        away_from: Collection[str] = (),
        damaged: Collection[str] = (),
    ) -> RepairFinished:
        """Make the missing copies of a ledger: fill the holes of live bookies, replace dead ones (I10).

        Args:
            missing_bookies: bookies reported to lack copies; those not registered now are replaced.
            away_from: bookies to be emptied. They are replaced, alive or not, and serve reads until then.
            damaged: bookies with copies that cannot be read. All their copies are read, and bad ones written again.

        Returns:
            The copies that were made, and ``complete``: whether nothing is left to do. If not, these copies stay, and
            ``repair`` may be called again. The last segment of a ledger that is not CLOSED is not touched: ``recover``
            it first.

        Raises:
            NoSuchLedgerError: it was deleted.
            UnsupportedError: a newer version made the ledger, with a digest unknown here; nothing was copied.
            MetadataError: the store could not be reached.
        """
        context = self._context
        found = await self._readable(ledger_id)
        alive = {*context.directory.writable, *context.directory.readonly}
        core = RepairCore(
            found,
            missing_bookies,
            alive,
            context.chooser_for(found.record),
            context.health,
            context.config.repair,
            away_from=away_from,
            damaged=damaged,
            window=self._repair_window,
        )
        self._repairs.append(core)
        try:
            finished = cast(RepairFinished, await MetadataOperation(context, core).result())
        finally:
            self._repairs.remove(core)
        self._counts["entries_repaired"] += finished.copied_entries
        self._counts["bytes_repaired"] += finished.copied_bytes
        self._counts["ledgers_repaired"] += finished.complete
        return finished

    def has_replacement(self, ledger: LedgerMetadata, positions: Collection[int]) -> bool:
        """Whether the ledger's placement finds a bookie for one of these positions of its last segment now."""
        context = self._context
        bookies = ledger.last_segment.bookies
        excluded = [bookies[position] for position in positions]
        return bool(context.chooser_for(ledger).choose_replacements(bookies, positions, context.now(), excluded))

    async def check(self, ledger_id: int) -> tuple[str, ...]:
        """Return the bookies that lack entries which metadata says they have, by asking all of them.

        The last segment of a ledger that is not CLOSED is left out.

        Raises:
            NoSuchLedgerError: it was deleted.
            QuorumLostError: a bookie did not answer; nothing may be concluded.
        """
        self._check_open()
        found = await self.metadata(ledger_id)
        finished = cast(CheckFinished, await Operation(self._context, CheckCore(found.record)).result())
        return tuple(bookie_id for bookie_id, _ in finished.lacking)

    async def holdings(self, ledger_id: int) -> tuple[LedgerMetadata, CheckFinished]:
        """Return the ledger's record, and how many entries each bookie lacks that metadata says it has.

        Bookies that do not answer are ``silent``. The last segment of a ledger that is not CLOSED is left out.

        Raises:
            NoSuchLedgerError: it was deleted.
        """
        self._check_open()
        found = await self.metadata(ledger_id)
        core = CheckCore(found.record, is_partial=True)
        return found.record, cast(CheckFinished, await Operation(self._context, core).result())

    async def copies(self, ledger_id: int, entry_id: int) -> dict[str, str]:
        """Ask each bookie that metadata names for an entry.

        Returns:
            by bookie ``present``, ``missing``, ``damaged`` or ``no answer``. Vacancies are left out.

        Raises:
            NoSuchLedgerError: it was deleted.
        """
        self._check_open()
        record, context = (await self.metadata(ledger_id)).record, self._context
        bookies = record.segment_of(entry_id).bookies
        schedule = schedule_of(record.ensemble_size, record.write_quorum, record.ack_quorum)
        asked = [bookies[position] for position in schedule.positions(entry_id) if not is_vacancy(bookies[position])]
        found: dict[str, str] = {}
        done: asyncio.Future[None] = context.loop.create_future()

        def on_answer(bookie_id: str, answer: Answer | BookieError, body: memoryview) -> None:
            found[bookie_id] = _COPIES.get(one_entry(answer, body, ledger_id, entry_id)[0], _SILENT)
            if len(found) == len(asked) and not done.done():
                done.set_result(None)

        for bookie_id in asked:
            context.request(bookie_id, BookieRequest(BookieOp.READ, 0, ledger_id, entry_id), b"", on_answer, bookie_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(context.config.request_timeout_ms / 1000):
                await done
        return {bookie_id: found.get(bookie_id, _SILENT) for bookie_id in asked}

    def statistics(self) -> dict[str, Any]:
        """Return counts since the start, and the present figures."""
        self._forget_ended_writers()
        return {
            **self._counts,
            "entries_repaired": self._counts["entries_repaired"] + sum(core.copied_entries for core in self._repairs),
            "bytes_repaired": self._counts["bytes_repaired"] + sum(core.copied_bytes for core in self._repairs),
            "bookies_with_holes": self._holes.bookies_found,
            "hole_searches_waiting": self._holes.ledgers_waiting,
            "writers": len(self._writers),
            "bytes_in_flight": sum(writer.bytes_in_flight for writer in self._writers.values()),
            "ensemble_changes": self._counts["ensemble_changes"]
            + sum(writer.core.ensemble_changes for writer in self._writers.values()),
            "bookies_writable": len(self._context.directory.writable),
            "bookies_readonly": len(self._context.directory.readonly),
        }

    async def close(self) -> None:
        """Stop everything, and leave the ledgers as they are. Adds under way fail: close writers first. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        context, why = self._context, "the ledger client was closed"
        for writer in self._writers.values():
            writer.abort(AlreadyClosedError(why))
        await context.close(why)
        await asyncio.gather(*self._recoveries.values(), return_exceptions=True)  # the callers get these errors
        await context.directory.close()

    # -- internals

    async def _create(self, record: LedgerMetadata) -> Versioned[LedgerMetadata] | None:
        """Store a new record. Return None if another client took its id."""
        store, path = self._context.store, ledger_path(record.ledger_id)
        for _ in range(CREATE_ATTEMPTS_MAX):
            try:
                await store.create(path, encode(record), parents=True)
                return Versioned(record, 0)
            except ConnectionLossError:
                continue
            except NodeExistsError:
                with contextlib.suppress(NoNodeError):
                    found = await read(store, path, LedgerMetadata)
                    # the token tells a create of ours whose reply was lost
                    return found if found.record.creator_token == record.creator_token else None
        return None

    async def _readable(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """Return the record of a ledger whose entries this version can check. Raise UnsupportedError otherwise."""
        self._check_open()
        found = await self.metadata(ledger_id)
        if found.record.digest not in DIGESTS:
            raise UnsupportedError(
                f"ledger {ledger_id} has digest {found.record.digest!r}, which this version cannot check: upgrade it",
                field="digest",
                limit=f"one of {', '.join(sorted(DIGESTS))}",
            )
        return found

    async def _recover(self, found: Versioned[LedgerMetadata]) -> LedgerMetadata:
        ledger_id = found.record.ledger_id
        operation = MetadataOperation(
            self._context, RecoveryCore(found, self._context.chooser_for(found.record), self._context.config.recovery)
        )
        finished = cast(RecoveryFinished, await operation.result())
        self._counts["ledgers_recovered"] += 1
        if operation.bookies_lacking:
            self._context.spawn(mark_underreplicated(self._context.store, ledger_id, operation.bookies_lacking))
        self._holes.begin(finished.metadata, operation.bookies_lacking)
        if (last := finished.last) is not None and len(last.payload) <= LAST_ENTRY_BYTES_MAX:
            self._last_entries[ledger_id] = replace(last, payload=bytes(last.payload))
            if len(self._last_entries) > LAST_ENTRIES_MAX:
                del self._last_entries[next(iter(self._last_entries))]
        return finished.metadata

    def _recovery_ended(self, ledger_id: int, ended: asyncio.Task[LedgerMetadata]) -> None:
        del self._recoveries[ledger_id]
        if not ended.cancelled():
            ended.exception()  # marks it as seen: every caller may have stopped waiting

    def _on_bookies_changed(self) -> None:
        context = self._context
        context.chooser.set_writable(context.directory.writable.values())
        context.bookies.retry_now()
        for runner in list(context.ticking):
            if isinstance(runner, LedgerWriter):
                runner.on_bookies_changed()

    def _forget_ended_writers(self) -> None:
        for ledger_id in [i for i, writer in self._writers.items() if writer.has_ended]:
            self._counts["ensemble_changes"] += self._writers.pop(ledger_id).core.ensemble_changes
        self._forget_at = 2 * len(self._writers) + ENDED_WRITERS_MAX  # about one look at a writer for each creation

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosedError("the ledger client was closed")

"""What a process uses ledgers with: create, recover, open, delete, repair."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, cast

from actors.errors import NoSuchLedgerError
from actors.ledger.chooser import BookieChooser
from actors.ledger.deletion import DeletionCore
from actors.ledger.directory import BookieDirectory
from actors.ledger.driver.access import check_access, hash_password
from actors.ledger.driver.config import PLACEMENT, LedgerClientConfig, load_placement
from actors.ledger.driver.holes import HoleSearch
from actors.ledger.driver.metadata_shell import MetadataOperation
from actors.ledger.driver.operation import Operation
from actors.ledger.driver.reader import LedgerReader
from actors.ledger.driver.underreplication import mark_underreplicated
from actors.ledger.driver.world import World
from actors.ledger.driver.writer import LedgerWriter
from actors.ledger.effects import CheckFinished, RecoveryFinished, RepairFinished
from actors.ledger.inventory import CheckCore
from actors.ledger.recovery import RecoveryCore
from actors.ledger.repair import RepairCore
from heliograph.errors import AlreadyClosedError
from metadata.codec import encode
from metadata.errors import ConnectionLossError, NodeExistsError, NoNodeError
from metadata.ids import next_ledger_id
from metadata.model import LedgerMetadata, Segment, Versioned, check_quorum
from metadata.paths import ledger as ledger_path
from metadata.store import MetadataStore
from metadata.update_loop import read

logger = logging.getLogger(__name__)

CREATE_ATTEMPTS_MAX = 5
ENDED_WRITERS_MAX = 100  # kept until they are looked for, besides as many as there are open ones


class LedgerClient:
    """One for each process (or broker): shares connections, the bookie directory and one clock among its ledgers."""

    def __init__(self, world: World) -> None:
        """Use ``start``."""
        self._world = world
        self._writers: dict[int, LedgerWriter] = {}
        self._forget_at = ENDED_WRITERS_MAX  # how many writers, before those that ended are looked for
        self._recoveries: dict[int, asyncio.Task[LedgerMetadata]] = {}
        counted = "ledgers_created ledgers_recovered ledgers_deleted ledgers_repaired entries_repaired bytes_repaired"
        self._counts = dict.fromkeys(counted.split(), 0) | {"ensemble_changes": 0}  # of writers that are forgotten
        self._holes = HoleSearch(world)
        self._is_closed = False

    @classmethod
    async def start(cls, store: MetadataStore, config: LedgerClientConfig | None = None) -> LedgerClient:
        """Read the bookie directory and start the clock.

        Raises:
            InvalidConfigError: the placement policy cannot be loaded.
            ConnectionLossError, SessionExpiredError.
        """
        config = config or LedgerClientConfig()
        chooser = BookieChooser(load_placement(config.placement), random.Random(), config.quarantine)
        directory = BookieDirectory(store)
        client = cls(World(store, directory, chooser, config))
        directory.add_listener(client._on_bookies_changed)
        await directory.start()
        client._on_bookies_changed()
        client._world.spawn(client._world.keep_time())
        return client

    @property
    def directory(self) -> BookieDirectory:
        """The bookies registered now."""
        return self._world.directory

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        properties: Mapping[str, str] | None = None,
        password: bytes = b"",
    ) -> LedgerWriter:
        """Create a ledger and become its writer. A failed call may have left an empty ledger behind.

        Args:
            properties: of the ledger; ``placement`` among them names the policy that chooses its bookies, now and when
                one has to be replaced.
            password: what ``open``, ``recover`` and ``repair`` must be given; empty for none. It keeps clients from
                opening the wrong ledger by mistake. It is no protection of the data: bookies do not know it, they
                are guarded by the cluster's secret.

        Raises:
            InvalidQuorumError: not E >= Qw >= Qa >= 1.
            BadRequestError: the password is too long.
            NotEnoughBookiesError: fewer than E bookies can be used now.
            InvalidConfigError: there is no such placement policy, or one of the user's broke its contract.
            MetadataError: the store could not be reached.
        """
        self._check_open()
        check_quorum(ensemble_size, write_quorum, ack_quorum)
        world = self._world
        chooser = world.chooser_of((properties or {}).get(PLACEMENT, ""))
        token = uuid.uuid4().hex
        password_hash = await hash_password(password)
        for _ in range(CREATE_ATTEMPTS_MAX):
            bookies = chooser.choose_ensemble(ensemble_size, write_quorum, world.now())
            record = LedgerMetadata(
                ledger_id=await next_ledger_id(world.store),
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                segments=(Segment(0, bookies),),
                created_ms=time.time_ns() // 1_000_000,
                creator_token=token,
                properties=dict(properties or {}),
                password_hash=password_hash,
            )
            created = await self._create(record)
            self._check_open()
            if created is not None:
                self._counts["ledgers_created"] += 1
                writer = LedgerWriter(world, created)
                if len(self._writers) >= self._forget_at:
                    self._forget_ended_writers()
                self._writers[record.ledger_id] = writer
                return writer
        raise ConnectionLossError("the metadata store lost the reply of every attempt to create a ledger")

    async def recover(self, ledger_id: int, password: bytes = b"") -> LedgerMetadata:
        """Fence the ledger, find its end and close it. Idempotent; concurrent calls for one ledger share the work.

        Returns:
            the CLOSED record, whoever closed it.

        Raises:
            NoSuchLedgerError: metadata does not know it.
            LedgerAccessError, UnsupportedError: wrong password, unknown digest; nothing was fenced.
            LedgerRecoveryError: too few bookies answered to decide; the ledger stays IN_RECOVERY, try again later.
            MetadataError: the store could not be reached; try again later.
        """
        found = await self._accessible(ledger_id, password)
        if found.record.is_closed:
            return found.record
        running = self._recoveries.get(ledger_id)
        if running is None:
            running = asyncio.get_running_loop().create_task(self._recover(found))
            self._recoveries[ledger_id] = running
            running.add_done_callback(partial(self._recovery_ended, ledger_id))
        return await asyncio.shield(running)

    async def open(self, ledger_id: int, password: bytes = b"") -> LedgerReader:
        """A reader, without recovery or fence.

        Raises:
            NoSuchLedgerError, MetadataError.
            LedgerAccessError, UnsupportedError: wrong password, unknown digest.
        """
        return LedgerReader(self._world, await self._accessible(ledger_id, password))

    async def delete(self, ledger_id: int) -> None:
        """Delete the ledger's record; its data goes as bookies notice. A ledger that is gone already is fine.

        Raises:
            ConnectionLossError: it may or may not be deleted; call again.
        """
        self._check_open()
        await MetadataOperation(self._world, DeletionCore(ledger_id)).result()
        self._counts["ledgers_deleted"] += 1

    async def metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """The ledger's record.

        Raises:
            NoSuchLedgerError: metadata does not know it.
            RecordError: the record is damaged, or written by a newer version.
            ConnectionLossError, SessionExpiredError: the store could not be reached.
        """
        try:
            return await read(self._world.store, ledger_path(ledger_id), LedgerMetadata)
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
        password: bytes = b"",
    ) -> bool:
        """Bring the ledger back to Qw copies: fill the holes of live bookies, replace dead ones (I10).

        Args:
            missing_bookies: bookies reported to lack copies; those not registered now are replaced.
            away_from: bookies to be emptied. They are replaced though they live, and serve as sources until then.

        Returns:
            whether nothing is left to do. If not, what was copied stays; ``repair`` may be called again. The last
            segment of a ledger that is not CLOSED is not touched: ``recover`` it first.

        Raises:
            NoSuchLedgerError: it was deleted.
            LedgerAccessError, UnsupportedError: wrong password, unknown digest; nothing was copied.
            MetadataError: the store could not be reached.
        """
        world = self._world
        found = await self._accessible(ledger_id, password)
        alive = {*world.directory.writable, *world.directory.readonly}
        core = RepairCore(
            found,
            missing_bookies,
            alive,
            world.chooser_for(found.record),
            world.health,
            world.config.repair,
            away_from=away_from,
        )
        finished = cast(RepairFinished, await MetadataOperation(world, core).result())
        self._counts["entries_repaired"] += finished.copied_entries
        self._counts["bytes_repaired"] += finished.copied_bytes
        if finished.complete:
            self._counts["ledgers_repaired"] += 1
        else:
            logger.info("ledger %d is not repaired completely: %s", ledger_id, finished.reason)
        return finished.complete

    async def check(self, ledger_id: int) -> tuple[str, ...]:
        """Ask the ledger's bookies what they store; those that lack entries which metadata says they have.

        The last segment of a ledger that is not CLOSED is left out.

        Raises:
            NoSuchLedgerError: it was deleted.
            QuorumLostError: a bookie did not answer; nothing may be concluded.
        """
        self._check_open()
        found = await self.metadata(ledger_id)
        finished = cast(CheckFinished, await Operation(self._world, CheckCore(found.record)).result())
        return tuple(bookie_id for bookie_id, _ in finished.lacking)

    def statistics(self) -> dict[str, Any]:
        """Counts since the start, and what is held now."""
        self._forget_ended_writers()
        return {
            **self._counts,
            "bookies_with_holes": self._holes.bookies_found,
            "hole_searches_waiting": self._holes.ledgers_waiting,
            "writers": len(self._writers),
            "bytes_in_flight": sum(writer.bytes_in_flight for writer in self._writers.values()),
            "ensemble_changes": self._counts["ensemble_changes"]
            + sum(writer.core.ensemble_changes for writer in self._writers.values()),
            "bookies_writable": len(self._world.directory.writable),
            "bookies_readonly": len(self._world.directory.readonly),
        }

    async def close(self) -> None:
        """Stop everything. Ledgers stay as they are: close writers first, or adds under way fail. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        world, why = self._world, "the ledger client was closed"
        for writer in self._writers.values():
            writer.abort(AlreadyClosedError(why))
        await world.close(why)
        await asyncio.gather(*self._recoveries.values(), return_exceptions=True)  # each was told
        await world.directory.close()

    # Within

    async def _create(self, record: LedgerMetadata) -> Versioned[LedgerMetadata] | None:
        """Store a new record; None when its id is somebody else's."""
        store, path = self._world.store, ledger_path(record.ledger_id)
        for _ in range(CREATE_ATTEMPTS_MAX):
            try:
                await store.create(path, encode(record), parents=True)
                return Versioned(record, 0)
            except ConnectionLossError:
                continue
            except NodeExistsError:
                with contextlib.suppress(NoNodeError):
                    found = await read(store, path, LedgerMetadata)
                    # Our own create, its reply lost, is recognised by the token.
                    return found if found.record.creator_token == record.creator_token else None
        return None

    async def _accessible(self, ledger_id: int, password: bytes) -> Versioned[LedgerMetadata]:
        self._check_open()
        found = await self.metadata(ledger_id)
        await check_access(found.record, password, is_upkeep=self._world.config.is_upkeep)
        return found

    async def _recover(self, found: Versioned[LedgerMetadata]) -> LedgerMetadata:
        ledger_id = found.record.ledger_id
        operation = MetadataOperation(
            self._world, RecoveryCore(found, self._world.chooser_for(found.record), self._world.config.recovery)
        )
        finished = cast(RecoveryFinished, await operation.result())
        self._counts["ledgers_recovered"] += 1
        if operation.bookies_lacking:
            self._world.spawn(mark_underreplicated(self._world.store, ledger_id, operation.bookies_lacking))
        self._holes.begin(finished.metadata, operation.bookies_lacking)
        return finished.metadata

    def _recovery_ended(self, ledger_id: int, ended: asyncio.Task[LedgerMetadata]) -> None:
        del self._recoveries[ledger_id]
        if not ended.cancelled():
            ended.exception()  # seen: every caller may have stopped waiting

    def _on_bookies_changed(self) -> None:
        world = self._world
        world.chooser.set_writable(world.directory.writable.values())
        for shell in list(world.ticking):
            if isinstance(shell, LedgerWriter):
                shell.on_bookies_changed()

    def _forget_ended_writers(self) -> None:
        for ledger_id in [i for i, writer in self._writers.items() if writer.has_ended]:
            self._counts["ensemble_changes"] += self._writers.pop(ledger_id).core.ensemble_changes
        self._forget_at = 2 * len(self._writers) + ENDED_WRITERS_MAX  # each is looked at about once for each creation

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosedError("the ledger client was closed")

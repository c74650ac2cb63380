"""The orphan sweep: deletes ledgers that a crash left behind, created for a topic and named by none of its records.

The leader searches at intervals, at a limited pace. A ledger is suspect only when it is far older than any session can
be, so that the broker that created it has named it or has lost the right to do so. A suspect is fenced before the
records are read once more, past all caches. If the broker that created it is alive after all, nothing that it adds is
confirmed any more, so nothing confirmed can be lost with the ledger (I14).

Almost every ledger is named. To find that out, values that the same sweep read before will do: it goes through ledgers
by their ids, in which the pieces of a long chain are ordered, too. So most ledgers cost no read but that of their own
record, and no record is parsed for each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_left
from collections import OrderedDict

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.errors import NoSuchLedgerError
from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError, InvalidTopicNameError
from heliograph.base.interval import Interval
from heliograph.metadata import codec, paths
from heliograph.metadata.chain_records import ChainPiece, PieceRef
from heliograph.metadata.errors import NoNodeError, RecordError, SessionExpiredError
from heliograph.metadata.model import LedgerMetadata, TopicRecord
from heliograph.metadata.recipes.restored_mark import is_restored
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

READS_PER_SECOND_MAX = 200
DELETIONS_PER_SWEEP_MAX = 1_000
SEEN_BYTES_MAX = 16 << 20  # of values that one sweep keeps  # I15
TOPICS_KEPT_MAX = 10_000  # whose lists of cursors one sweep keeps  # I15
COMPACTION_GRACES = 24  # a compaction names its ledger when it ends, which may take long
USES = ("topic", "cursor", "delayed", "deduplication", "compaction")  # ledgers that a topic's records have to name

log = logging.getLogger(__name__)


def names(value: bytes, ledger_id: int) -> bool:
    """Return whether a number stands anywhere in a record's JSON, also inside strings, without parsing it.

    Other numbers may keep a ledger that could be deleted, but no ledger that is named is missed, whatever the fields.
    """
    number = b"%d" % ledger_id
    at = value.find(number, value.find(b"\n") + 1)
    while at >= 0:
        if not value[at - 1 : at].isdigit() and not value[at + len(number) : at + len(number) + 1].isdigit():
            return True
        at = value.find(number, at + 1)
    return False


def is_suspect(ledger: LedgerMetadata, now: int, grace_ms: int) -> bool:
    """Return whether a topic's records should name the ledger by now."""
    use, topic = ledger.properties.get("use"), ledger.properties.get("topic")
    grace_ms *= COMPACTION_GRACES if use == "compaction" else 1
    return use in USES and bool(topic) and 0 < ledger.created_ms <= now - grace_ms


class OrphanSweep:
    """The periodic search, which the leader runs. Two at once do no harm."""

    def __init__(self, store: MetadataStore, ledgers: LedgersPort, grace_seconds: float) -> None:
        self._store = store
        self._ledgers = ledgers
        self._grace_ms = int(grace_seconds * 1000)
        self._next_read = 0.0
        self.deleted_total = 0

    async def run(self, interval: Interval) -> None:
        """Sweep at intervals until the session ends."""
        while True:
            await interval.passes()
            try:
                deleted = await self.sweep()
                if deleted:
                    log.info("deleted %d orphaned ledgers", deleted)
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("the search for orphaned ledgers failed: %s", error)

    async def sweep(self) -> int:
        """Check every ledger once. Return how many were deleted: none while a restored backup is not accepted.

        Raises:
            MetadataError: metadata cannot be read; ledgers that were not checked stay.
        """
        deleted, seen = 0, _Nodes(self, SEEN_BYTES_MAX)
        if await is_restored(self._store):  # I14
            return deleted
        for high in await self.children(paths.LEDGERS):
            for middle in await self.children(f"{paths.LEDGERS}/{high}"):
                parent = f"{paths.LEDGERS}/{high}/{middle}"
                for leaf in await self.children(parent):
                    if deleted >= DELETIONS_PER_SWEEP_MAX:
                        return deleted
                    deleted += await self._check(f"{parent}/{leaf}", seen)
        return deleted

    async def _check(self, path: str, seen: _Nodes) -> bool:
        value = await self.value(path)
        if value is None:
            return False
        try:
            ledger = codec.decode(LedgerMetadata, value)
        except RecordError as error:
            log.warning("%s: %s", path, error)
            return False
        if not is_suspect(ledger, wall_ms(), self._grace_ms) or await self._is_named(ledger, seen):
            return False
        if await self._is_named(ledger, _Nodes(self)):  # since
            return False
        try:
            if not ledger.is_closed:
                await self._ledgers.recover(ledger.ledger_id)
            await self._store.sync()
            if await self._is_named(ledger, _Nodes(self)):  # I14
                return False
            await self._ledgers.delete(ledger.ledger_id)
        except NoSuchLedgerError:
            return False
        except SessionExpiredError:
            raise
        except HeliographError as error:
            log.warning("orphaned ledger %d could not be deleted: %s", ledger.ledger_id, error)
            return False
        self.deleted_total += 1
        log.info("deleted orphaned ledger %d of %s", ledger.ledger_id, ledger.properties.get("topic"))
        return True

    async def _is_named(self, ledger: LedgerMetadata, nodes: _Nodes) -> bool:
        """Return whether the topic's record, a piece of its chain or one of its cursors names the ledger."""
        try:
            path = Catalog.topic_path(TopicName.parse(ledger.properties["topic"]))
        except InvalidTopicNameError:
            return True  # not created by a broker
        in_chain = ledger.properties["use"] == "topic"
        if nodes.is_kept and in_chain:  # no cursor has such a ledger
            return await nodes.name(path, ledger.ledger_id) or await self._is_in_piece(path, ledger.ledger_id, nodes)
        # A ledger that moves from one record to another meanwhile is in the record that is read later: it moves from a
        # cursor to the topic's record, and from there to a piece.
        for child in await nodes.children(path):
            if paths.is_cursor(child) and await nodes.name(f"{path}/{child}", ledger.ledger_id):
                return True
        return await nodes.name(path, ledger.ledger_id) or await self._is_in_piece(path, ledger.ledger_id, nodes)

    async def _is_in_piece(self, topic_path: str, ledger_id: int, nodes: _Nodes) -> bool:
        try:
            refs = await nodes.refs(topic_path, TopicRecord)
            while (at := bisect_left(refs, ledger_id, key=lambda ref: ref.last_id)) < len(refs):
                ref = refs[at]
                path = paths.chain_piece(topic_path, ref.number)
                if ledger_id < ref.first_id:
                    return False
                if await nodes.value(path) is None:
                    return True  # the chain is being changed there
                if ref.level == 1:
                    return await nodes.name(path, ledger_id)
                refs = await nodes.refs(path, ChainPiece)
        except RecordError as error:
            log.warning("%s: %s", topic_path, error)
            return True  # of a newer version: what it names is not known
        return False

    async def children(self, path: str) -> list[str]:
        """Return the children of a node now, at the pace of the sweep; none if there is no such node."""
        await self._pace()
        with contextlib.suppress(NoNodeError):
            return await self._store.children(path)
        return []

    async def value(self, path: str) -> bytes | None:
        """Return the value of a node now, at the pace of the sweep; None if there is no such node."""
        await self._pace()
        with contextlib.suppress(NoNodeError):
            value, _ = await self._store.get(path)
            return value
        return None

    async def _pace(self) -> None:
        now = time.monotonic()
        self._next_read = max(self._next_read, now) + 1 / READS_PER_SECOND_MAX
        if self._next_read - now > 1 / READS_PER_SECOND_MAX:
            await asyncio.sleep(self._next_read - now)


class _Nodes:
    """Values of nodes that were read, raw and parsed. At most ``bytes_max``: the oldest are forgotten."""

    def __init__(self, sweep: OrphanSweep, bytes_max: int = 0) -> None:
        self.is_kept = bytes_max > 0
        self._sweep = sweep
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: OrderedDict[str, bytes | None] = OrderedDict()
        self._children: OrderedDict[str, list[str]] = OrderedDict()
        self._refs: dict[str, tuple[PieceRef, ...]] = {}

    async def value(self, path: str) -> bytes | None:
        if path in self._values:
            self._values.move_to_end(path)
            return self._values[path]
        value = await self._sweep.value(path)
        self._values[path] = value
        self._bytes += len(value or b"")
        while self._bytes > self._bytes_max and len(self._values) > 1:
            old, gone = self._values.popitem(last=False)
            self._bytes -= len(gone or b"")
            self._refs.pop(old, None)
        return value

    async def children(self, path: str) -> list[str]:
        if path not in self._children:
            self._children[path] = await self._sweep.children(path)
            if len(self._children) > TOPICS_KEPT_MAX:
                self._children.popitem(last=False)
        return self._children[path]

    async def name(self, path: str, ledger_id: int) -> bool:
        value = await self.value(path)
        return value is not None and names(value, ledger_id)

    async def refs(self, path: str, kind: type[TopicRecord | ChainPiece]) -> tuple[PieceRef, ...]:
        value = await self.value(path)
        if value is None or codec.is_without_pieces(value):
            return ()
        if path not in self._refs:
            self._refs[path] = codec.decode(kind, value).pieces
        return self._refs[path]

"""The orphan sweep: deletes ledgers that a crash left behind, created for a topic and named by none of its records.

The leader searches at intervals, at a limited pace. A ledger is suspect only when it is far older than any session can
be, so that the broker that created it has named it or has lost the right to do so. A suspect is fenced before the
records are read once more, past all caches. If the broker that created it is alive after all, nothing that it adds is
confirmed any more, so nothing confirmed can be lost with the ledger (I14).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.errors import NoSuchLedgerError
from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError, InvalidTopicNameError
from heliograph.base.interval import Interval
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NoNodeError, RecordError, SessionExpiredError
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.recipes.restored_mark import is_restored
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

READS_PER_SECOND_MAX = 200
DELETIONS_PER_SWEEP_MAX = 1_000
COMPACTION_GRACES = 24  # a compaction names its ledger when it ends, which may take long
USES = ("topic", "cursor", "delayed", "deduplication", "compaction")  # ledgers that a topic's records have to name

_NUMBER = re.compile(r"[0-9]+")

log = logging.getLogger(__name__)


def numbers_in(value: bytes) -> set[int]:
    """Return every integer in a record's JSON, also inside strings. The ids of all ledgers it names are among them.

    Other numbers may keep a ledger that could be deleted, but no ledger that is named is missed, whatever the fields.
    """
    return set(_numbers(json.loads(value.partition(b"\n")[2])))


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
        deleted = 0
        if await is_restored(self._store):  # I14
            return deleted
        for high in await self._children(paths.LEDGERS):
            for middle in await self._children(f"{paths.LEDGERS}/{high}"):
                parent = f"{paths.LEDGERS}/{high}/{middle}"
                for leaf in await self._children(parent):
                    if deleted >= DELETIONS_PER_SWEEP_MAX:
                        return deleted
                    deleted += await self._check(f"{parent}/{leaf}")
        return deleted

    async def _check(self, path: str) -> bool:
        value = await self._value(path)
        if value is None:
            return False
        try:
            ledger = codec.decode(LedgerMetadata, value)
        except RecordError as error:
            log.warning("%s: %s", path, error)
            return False
        if not is_suspect(ledger, wall_ms(), self._grace_ms) or await self._is_named(ledger):
            return False
        try:
            if not ledger.is_closed:
                await self._ledgers.recover(ledger.ledger_id)
            await self._store.sync()
            if await self._is_named(ledger):  # I14
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

    async def _is_named(self, ledger: LedgerMetadata) -> bool:
        """Return whether the topic's record or one of its cursors names the ledger now."""
        try:
            topic = TopicName.parse(ledger.properties["topic"])
        except InvalidTopicNameError:
            return True  # not created by a broker
        path = Catalog.topic_path(topic)
        # Children first: a ledger that moves from one record to another meanwhile is in the record that is read later.
        for child in await self._children(path):
            value = await self._value(f"{path}/{child}")
            if value is not None and ledger.ledger_id in numbers_in(value):
                return True
        value = await self._value(path)
        return value is not None and ledger.ledger_id in numbers_in(value)

    async def _children(self, path: str) -> list[str]:
        await self._pace()
        with contextlib.suppress(NoNodeError):
            return await self._store.children(path)
        return []

    async def _value(self, path: str) -> bytes | None:
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


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield value
    elif isinstance(value, str):
        yield from map(int, _NUMBER.findall(value))
    else:
        items: Iterable[Any] = ()
        if isinstance(value, dict):
            items = (*value, *value.values())
        elif isinstance(value, list):
            items = value
        for item in items:
            yield from _numbers(item)

"""Ledgers that a crash left behind: made for a topic, and named by none of its records.

The leader looks for them now and then, slowly. A ledger counts as an orphan only when it is far older than any session
can be, so that whoever made it has named it or has lost the right to. It is fenced before the records are read once
more, directly: should its maker be alive against all odds, nothing that it adds is confirmed any more, so nothing
confirmed can be lost with the ledger (I14).
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

from actors.broker.catalog import Catalog
from actors.broker.ledgers import Ledgers
from actors.broker.topic_record import now_ms
from actors.errors import NoSuchLedgerError
from heliograph.errors import HeliographError, InvalidTopicNameError
from heliograph.protocol.topic_name import TopicName
from metadata import codec, paths
from metadata.errors import NoNodeError, RecordError, SessionExpiredError
from metadata.model import LedgerMetadata
from metadata.store import MetadataStore

READS_PER_SECOND_MAX = 200
DELETIONS_PER_SWEEP_MAX = 1_000
COMPACTION_GRACES = 24  # a compaction names its ledger when it is done, and may take long
USES = ("topic", "cursor", "delayed", "deduplication", "compaction")  # ledgers that a topic's records have to name

_NUMBER = re.compile(r"[0-9]+")

log = logging.getLogger(__name__)


def numbers_in(value: bytes) -> set[int]:
    """Every whole number in a record's JSON, also those inside of texts: a ledger that is named is among them.

    It may find more than are named, which keeps a ledger that could go; never less, whatever fields a record has.
    """
    return set(_numbers(json.loads(value.partition(b"\n")[2])))


def is_suspect(ledger: LedgerMetadata, now: int, grace_ms: int) -> bool:
    """Whether a ledger is one that a topic's records should name by now."""
    use, topic = ledger.properties.get("use"), ledger.properties.get("topic")
    grace_ms *= COMPACTION_GRACES if use == "compaction" else 1
    return use in USES and bool(topic) and 0 < ledger.created_ms <= now - grace_ms


class OrphanSweep:
    """Finds and deletes orphans. To be run by the leader; two at once do no harm."""

    def __init__(self, store: MetadataStore, ledgers: Ledgers, grace_seconds: float) -> None:
        self._store = store
        self._ledgers = ledgers
        self._grace_ms = int(grace_seconds * 1000)
        self._next_read = 0.0
        self.deleted_total = 0

    async def run(self, every_seconds: float) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(every_seconds)
            try:
                deleted = await self.sweep()
                if deleted:
                    log.info("%d ledgers that nothing named were deleted", deleted)
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("the search for orphaned ledgers: %s", error)

    async def sweep(self) -> int:
        """Look at every ledger once; returns how many were deleted.

        Raises:
            MetadataError: metadata cannot be read; what was not looked at stays.
        """
        deleted = 0
        for high in await self._children(paths.LEDGERS):
            for middle in await self._children(f"{paths.LEDGERS}/{high}"):
                parent = f"{paths.LEDGERS}/{high}/{middle}"
                for leaf in await self._children(parent):
                    if deleted >= DELETIONS_PER_SWEEP_MAX:
                        return deleted
                    deleted += await self._look_at(f"{parent}/{leaf}")
        return deleted

    async def _look_at(self, path: str) -> bool:
        value = await self._value(path)
        if value is None:
            return False
        try:
            ledger = codec.decode(LedgerMetadata, value)
        except RecordError as error:
            log.warning("%s: %s", path, error)
            return False
        if not is_suspect(ledger, now_ms(), self._grace_ms) or await self._is_named(ledger):
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
            log.warning("orphaned ledger %d stays: %s", ledger.ledger_id, error)
            return False
        self.deleted_total += 1
        log.info("ledger %d of %s was named by nothing", ledger.ledger_id, ledger.properties.get("topic"))
        return True

    async def _is_named(self, ledger: LedgerMetadata) -> bool:
        """By the topic's record or one of its cursors', as metadata has them now."""
        try:
            topic = TopicName.parse(ledger.properties["topic"])
        except InvalidTopicNameError:
            return True  # not one that we made
        path = Catalog.topic_path(topic)
        # Children first: what moves from one record to another in between is in the record that is read later.
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

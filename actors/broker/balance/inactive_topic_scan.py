"""The inactive-topic scan: retention, TTL and the deletion of inactive topics for topics that no broker has loaded.

The leader reads the records of all topics at intervals, at a limited pace. It asks the owner of each topic for which
something is due to open that topic; the owner's housekeeping then does the work and closes the topic when it is idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from heliograph.actors.broker.managed_ledger.retention import may_trim
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.policies import effective
from heliograph.actors.broker.records.topic_record import DELETING
from heliograph.base.clock import wall_ms
from heliograph.base.completion import all_ended
from heliograph.base.errors import HeliographError, InvalidTopicNameError, NamespaceNotFoundError
from heliograph.base.interval import Interval
from heliograph.metadata import paths
from heliograph.metadata.errors import NoNodeError, RecordError, SessionExpiredError
from heliograph.metadata.model import NamespacePolicies, Policies, TopicRecord
from heliograph.metadata.parents import child_pages
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

READS_PER_SECOND_MAX = 400
READS_AT_ONCE = 32  # one by one, each costs twice the processor time
TOPICS_BETWEEN_TURNS = 100  # of the event loop: 20 us each
VISITS_PER_SECOND_MAX = 20
REVISIT_SECONDS = 3_600.0  # between two visits to one topic
VISITS_KEPT_MAX = 100_000  # above, the oldest are forgotten, and those topics are visited again sooner

_NOT_WRITTEN_YET = 1 << 62  # the ledger that opening the topic will append

log = logging.getLogger(__name__)


def is_due(record: TopicRecord, policies: Policies, subscriptions: int, now: int) -> bool:
    """Return whether retention, TTL, expiration or deletion is due for a topic that is not loaded.

    The positions of its cursors are not known here, so a topic may be due and have nothing to delete.

    Args:
        subscriptions: the number of durable subscriptions.
        now: in milliseconds of wall time.
    """
    if DELETING in record.properties:
        return True  # the broker that opens the topic finishes its deletion
    has_entries = bool(record.pieces) or any(info.entries for info in record.ledgers)  # else it was trimmed
    if has_entries and may_trim(record, _NOT_WRITTEN_YET, _NOT_WRITTEN_YET, now, policies, keeps_retained=True):
        return True
    oldest = min((info.closed_ms for info in record.ledgers if info.entries), default=now)
    if record.pieces:
        oldest = record.pieces[0].closed_ms
    newest = max((info.closed_ms for info in record.ledgers), default=record.created_ms)
    ages = [
        (policies.message_ttl_seconds if subscriptions else 0, oldest),
        (policies.subscription_expiration_seconds if subscriptions else 0, newest),
        (policies.deletes_after_seconds, newest),
    ]
    return any(seconds > 0 and now - since >= seconds * 1000 for seconds, since in ages)


class InactiveTopicScan:
    """The periodic scan, which the leader runs.

    Args:
        visit: asks the owner of a topic to open it.
        finish: finishes deletions that did not end; called before each scan.
    """

    def __init__(
        self,
        store: MetadataStore,
        catalog: Catalog,
        visit: Callable[[TopicName], Awaitable[None]],
        finish: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._visit = visit
        self._finish = finish
        self._visited: dict[TopicName, float] = {}
        self.visits_total = 0

    async def run(self, interval: Interval) -> None:
        """Scan at intervals until the session ends."""
        while True:
            await interval.passes()
            try:
                await self._finish()
                await self.scan()
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("the inactive-topic scan failed: %s", error)

    async def scan(self) -> int:
        """Read the record of every topic once. Return the number of topics that their owners opened.

        Raises:
            MetadataError: metadata cannot be read.
        """
        now = time.monotonic()
        self._visited = {name: at for name, at in self._visited.items() if now - at < REVISIT_SECONDS}
        visits = 0
        async for tenant in self._children(paths.TOPICS):
            async for namespace in self._children(f"{paths.TOPICS}/{tenant}"):
                folder = f"{paths.TOPICS}/{tenant}/{namespace}"
                names = [paths.last_part(f"/{part}") for part in (tenant, namespace)]
                with contextlib.suppress(NamespaceNotFoundError, InvalidTopicNameError):
                    policies = await self._catalog.policies(TopicName.parse(f"persistent://{'/'.join(names)}/any"))
                    visits += await self._scan_namespace(folder, "/".join(names), policies)
        return visits

    async def _scan_namespace(self, folder: str, namespace: str, policies: NamespacePolicies) -> int:
        own = await self._catalog.topics_with_policies(TopicName.parse(f"persistent://{namespace}/any"))
        is_common_timed = _has_timed_policies(common := effective(policies, {}))
        visits = looked_at = 0
        timed: list[tuple[TopicName, str, Policies]] = []
        async for child in self._children(folder):
            looked_at += 1
            if looked_at % TOPICS_BETWEEN_TURNS == 0:  # I24
                await asyncio.sleep(0)
            name = TopicName.parse(f"persistent://{namespace}/{paths.last_part('/' + child)}")
            if name in self._visited:
                continue
            applied, is_timed = common, is_common_timed
            if self._catalog.may_override(name, own):
                applied = effective(policies, (await self._catalog.topic_policies(name)).overrides)
                is_timed = _has_timed_policies(applied)
            if is_timed:
                timed.append((name, f"{folder}/{child}", applied))
            if len(timed) == READS_AT_ONCE:
                visits += await self._visit_due(timed)
                timed = []
        return visits + await self._visit_due(timed)

    async def _visit_due(self, topics: Sequence[tuple[TopicName, str, Policies]]) -> int:
        await asyncio.sleep(len(topics) / READS_PER_SECOND_MAX)
        due = await all_ended(self._is_due(path, policies) for _, path, policies in topics)
        return sum([await self._try_visit(name) for (name, *_), is_one in zip(topics, due, strict=True) if is_one])

    async def _is_due(self, path: str, policies: Policies) -> bool:
        try:
            record, now = (await read(self._store, path, TopicRecord)).record, wall_ms()
            if not is_due(record, policies, 1, now):  # whether it has any subscriptions or not
                return False
            subscriptions = sum(map(paths.is_cursor, await self._store.children(path)))
        except NoNodeError:
            return False
        except RecordError as error:
            log.warning("%s: %s", path, error)
            return False
        return is_due(record, policies, subscriptions, now)

    async def _try_visit(self, name: TopicName) -> bool:
        while len(self._visited) >= VISITS_KEPT_MAX:
            del self._visited[next(iter(self._visited))]
        self._visited[name] = time.monotonic()
        try:
            await self._visit(name)
        except SessionExpiredError:
            raise
        except HeliographError as error:
            log.info("%s is due for housekeeping and cannot be opened: %s", name, error)
            return False
        self.visits_total += 1
        await asyncio.sleep(1 / VISITS_PER_SECOND_MAX)
        return True

    async def _children(self, path: str) -> AsyncIterator[str]:
        with contextlib.suppress(NoNodeError):
            async for page in child_pages(self._store, path):
                for name in page:
                    yield name


def _has_timed_policies(policies: Policies) -> bool:
    timed: Mapping[str, int] = {
        "retention_seconds": -1,
        "retention_bytes": -1,
        "message_ttl_seconds": 0,
        "inactive_delete_seconds": 0,
        "subscription_expiration_seconds": 0,
    }
    return any(getattr(policies, name) != never for name, never in timed.items())

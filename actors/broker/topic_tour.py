"""Topics that nobody uses are in no broker's memory, and time goes on for them all the same: retention, TTL and the
deletion of what is inactive. The leader looks at their records now and then, slowly, and has the owner of a topic for
which something is due open it; the owner's housekeeping does the rest, and closes it again in its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from actors.broker.catalog import Catalog
from actors.broker.policies import effective
from actors.broker.retention import expendable
from actors.broker.topic_record import DELETING, now_ms
from heliograph.errors import HeliographError, InvalidTopicNameError, NamespaceNotFoundError
from heliograph.protocol.topic_name import TopicName
from metadata import paths
from metadata.errors import NoNodeError, RecordError, SessionExpiredError
from metadata.model import LedgerInfo, NamespacePolicies, Policies, TopicRecord
from metadata.store import MetadataStore
from metadata.update_loop import read

READS_PER_SECOND_MAX = 200
VISITS_PER_SECOND_MAX = 20
REST_SECONDS = 3_600.0  # before a topic is visited again
REMEMBERED_MAX = 100_000  # visits; above, the oldest are forgotten and those topics are visited again sooner

_NOT_WRITTEN_YET = LedgerInfo(1 << 62)  # the ledger that opening the topic will append

log = logging.getLogger(__name__)


def is_due(record: TopicRecord, policies: Policies, subscriptions: int, now: int) -> bool:
    """Whether time has given a topic that nobody uses something to do (pure). What its cursors hold is not known here.

    Args:
        subscriptions: durable ones.
        now: milliseconds.
    """
    ledgers = (*record.ledgers, _NOT_WRITTEN_YET)
    if DELETING in record.properties:
        return True  # who opens it finishes its deletion
    kept = {"retention_seconds": policies.retention_seconds, "retention_bytes": policies.retention_bytes}
    if expendable(ledgers, _NOT_WRITTEN_YET.ledger_id, now, **kept):
        return True
    oldest = min((info.closed_ms for info in record.ledgers if info.entries), default=now)
    newest = max((info.closed_ms for info in record.ledgers), default=record.created_ms)
    ages = [
        (policies.message_ttl_seconds if subscriptions else 0, oldest),
        (policies.subscription_expiration_seconds if subscriptions else 0, newest),
        (policies.inactive_delete_seconds, newest),
    ]
    return any(seconds > 0 and now - since >= seconds * 1000 for seconds, since in ages)


class TopicTour:
    """To be run by the leader.

    Args:
        visit: has a topic's owner open it.
    """

    def __init__(self, store: MetadataStore, catalog: Catalog, visit: Callable[[TopicName], Awaitable[None]]) -> None:
        self._store = store
        self._catalog = catalog
        self._visit = visit
        self._visited: dict[TopicName, float] = {}
        self.visits_total = 0

    async def run(self, every_seconds: float) -> None:
        """Go round for ever."""
        while True:
            await asyncio.sleep(every_seconds)
            try:
                await self.go()
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("the tour of topics: %s", error)

    async def go(self) -> int:
        """Look at every topic once; returns how many were visited.

        Raises:
            MetadataError: metadata cannot be read.
        """
        now = time.monotonic()
        self._visited = {name: at for name, at in self._visited.items() if now - at < REST_SECONDS}
        visits = 0
        for tenant in await self._children(paths.TOPICS):
            for namespace in await self._children(f"{paths.TOPICS}/{tenant}"):
                folder = f"{paths.TOPICS}/{tenant}/{namespace}"
                names = [paths.last_part(f"/{part}") for part in (tenant, namespace)]
                with contextlib.suppress(NamespaceNotFoundError, InvalidTopicNameError):
                    policies = await self._catalog.policies(TopicName.parse(f"persistent://{'/'.join(names)}/any"))
                    visits += await self._go_through(folder, "/".join(names), policies)
        return visits

    async def _go_through(self, folder: str, namespace: str, policies: NamespacePolicies) -> int:
        own = await self._catalog.topics_with_policies(TopicName.parse(f"persistent://{namespace}/any"))
        visits = 0
        for child in await self._children(folder):
            name = TopicName.parse(f"persistent://{namespace}/{paths.last_part('/' + child)}")
            if name in self._visited:
                continue
            has_own = self._catalog.may_override(name, own)
            overrides = (await self._catalog.topic_policies(name)).overrides if has_own else {}
            if await self._is_due(f"{folder}/{child}", effective(policies, overrides)):
                visits += await self._try(name)
        return visits

    async def _is_due(self, path: str, policies: Policies) -> bool:
        if not _has_work_for_time(policies):
            return False
        await asyncio.sleep(1 / READS_PER_SECOND_MAX)
        try:
            record = (await read(self._store, path, TopicRecord)).record
            subscriptions = len(await self._store.children(path))
        except NoNodeError:
            return False
        except RecordError as error:
            log.warning("%s: %s", path, error)
            return False
        return is_due(record, policies, subscriptions, now_ms())

    async def _try(self, name: TopicName) -> bool:
        while len(self._visited) >= REMEMBERED_MAX:
            del self._visited[next(iter(self._visited))]
        self._visited[name] = time.monotonic()
        try:
            await self._visit(name)
        except SessionExpiredError:
            raise
        except HeliographError as error:
            log.info("%s has something due and cannot be opened: %s", name, error)
            return False
        self.visits_total += 1
        await asyncio.sleep(1 / VISITS_PER_SECOND_MAX)
        return True

    async def _children(self, path: str) -> list[str]:
        with contextlib.suppress(NoNodeError):
            return await self._store.children(path)
        return []


def _has_work_for_time(policies: Policies) -> bool:
    timed: Mapping[str, int] = {
        "retention_seconds": -1,
        "retention_bytes": -1,
        "message_ttl_seconds": 0,
        "inactive_delete_seconds": 0,
        "subscription_expiration_seconds": 0,
    }
    return any(getattr(policies, name) != never for name, never in timed.items())

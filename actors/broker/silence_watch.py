"""Watch for a silent metadata store: meanwhile the broker asks the bookies whether it still owns its open topics.

A topic that another broker has taken over is dropped when a bookie says so, also if nobody publishes to it (I13).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.subscription.witness import PROBE_SECONDS
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.topic.topics import Topics
from heliograph.base.completion import end_task
from heliograph.base.errors import HeliographError
from heliograph.metadata.store import MetadataStore, SessionState

PROBES_AT_ONCE_MAX = 128  # topics whose bookies are asked at the same time (I15)
TOLD_AFTER_SECONDS = 5.0  # of silence; a shorter one is no news

log = logging.getLogger(__name__)


class SilenceWatch:
    """Watches one broker's store. It does nothing while the store answers."""

    def __init__(self, store: MetadataStore, ownership: Ownership, topics: Topics) -> None:
        self._store = store
        self._ownership = ownership
        self._topics = topics
        self._at_once = asyncio.Semaphore(PROBES_AT_ONCE_MAX)
        self._probing: dict[BrokerTopic, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._is_told = False

    def start(self) -> None:
        self._store.add_session_listener(self._on_session)

    async def stop(self) -> None:
        """Stop watching. Idempotent."""
        self._store.remove_session_listener(self._on_session)
        for task in (self._watching, *self._probing.values()):
            await end_task(task)

    def look(self) -> None:
        """Ask the bookies of each topic with consumers, unless a question is pending; take keys back if needed.

        A bookie that is cut off is silent for longer than a new owner holds keys back, so no answer is waited for.
        """
        for topic in self._topics.loaded:
            if not topic.is_open or not topic.has_consumers:
                continue
            if topic.setting.witness.is_over():
                _take_keys_back(topic)
            if topic not in self._probing:
                task = self._probing[topic] = asyncio.get_running_loop().create_task(self._probe(topic))
                task.add_done_callback(lambda _, asked=topic: self._probing.pop(asked, None))  # type: ignore[misc]

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.SUSPENDED and (self._watching is None or self._watching.done()):
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="silence")

    async def _watch(self) -> None:
        while not self._ownership.knows and self._store.state is not SessionState.LOST:
            silent = self._store.silent_seconds
            if silent > TOLD_AFTER_SECONDS and not self._is_told:
                self._is_told = True
                log.warning(
                    "the metadata store has not answered for %.0f s: open topics are served, changes of metadata wait",
                    silent,
                )
            if self._store.is_in_doubt or not self._ownership.knows:
                self.look()
            await asyncio.sleep(PROBE_SECONDS)
        for topic in self._topics.loaded:
            topic.setting.witness.holds()  # notes that the doubt is over
        if self._is_told:
            self._is_told = False
            log.warning("the metadata store answers again, and it is known which bundles this broker owns")

    async def _probe(self, topic: BrokerTopic) -> None:
        witness, writer = topic.setting.witness, topic.ledger.writer
        async with self._at_once:
            asked_at = witness.now()
            with contextlib.suppress(HeliographError):
                if await writer.probe(topic.ledger.lose):  # I13
                    witness.confirm(asked_at)


def _take_keys_back(topic: BrokerTopic) -> None:
    for subscription in list(topic.subscriptions.values()):
        if subscription.kind is SubscriptionType.KEY_SHARED:
            subscription.disconnect()  # I16: another broker may deliver what its consumers hold

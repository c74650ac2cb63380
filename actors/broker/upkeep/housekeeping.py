"""The rounds of upkeep of a broker's topics: a look at each topic that is due.

A topic is looked at in the round after something happened in it, and again in the round after that, because much of
what happens ends in the background. That second look tells when the next duty is due by time alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from heliograph.actors.broker.managed_ledger.retention import last_due_ms
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.records.activity import ChangedTopics
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.upkeep.agenda import Agenda
from heliograph.actors.broker.upkeep.expiry import expire_by_policy, expiry_due_ms
from heliograph.actors.broker.upkeep.idle_topics import IdleAction, IdleTopics, is_in_use
from heliograph.base.clock import NEVER_MS, SteadyClock
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.protocol.topic_name import TopicName

TOPICS_A_TURN = 20  # of the event loop, so that requests do not wait long
UNLOADS_AT_ONCE_MAX = 32  # idle topics
CLOCK_STEP_MS = 1_000  # of the clock of ages against the monotonic clock, after which nothing that was planned holds

log = logging.getLogger(__name__)


class UpkeptTopics(Protocol):
    """The part of ``Topics`` that housekeeping needs."""

    ages: SteadyClock

    @property
    def loaded(self) -> list[BrokerTopic]:
        """Return the loaded topics."""

    @property
    def is_certain(self) -> bool:
        """Return whether the store says that this broker owns its bundles: all of this changes metadata."""

    def find(self, name: TopicName) -> BrokerTopic | None:
        """Return the topic if it is loaded."""

    async def unload(self, name: TopicName) -> None:
        """Stop serving a topic in good order."""


class Housekeeping:
    """Rolls ledgers that are due, trims, expires, starts compactions, checks quotas, and closes or deletes idle topics.

    Attributes:
        idle: decides on unused topics.
        looks: at topics, since the start of the broker.
    """

    def __init__(
        self,
        topics: UpkeptTopics,
        changed: ChangedTopics,
        idle: IdleTopics,
        delete_idle: Callable[[BrokerTopic], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            changed: the topics in which something happened.
            delete_idle: deletes a topic that a policy wants gone because it is not used.
            clock: seconds that only grow.
        """
        self.idle = idle
        self.looks = 0
        self._topics = topics
        self._agenda = Agenda(changed)
        self._delete_idle = delete_idle
        self._clock = clock
        self._ahead_ms: int | None = (
            None  # the clock of ages, of the monotonic one, as plans were made; None: all are off
        )

    @property
    def planned(self) -> int:
        """Return how many topics are due or wait for their time."""
        return len(self._agenda)

    def look_at_all(self) -> None:
        """Look at every topic in the next round: a setting of all of them has changed."""
        self._ahead_ms = None

    async def round(self) -> None:
        """Look at each topic that is due. While the store is out of reach, nothing is done, and all stay due."""
        if not self._topics.is_certain:
            return
        now = self._clock()
        ahead_ms = self._topics.ages.now_ms() - round(1_000 * now)
        is_stale = self._ahead_ms is None or abs(ahead_ms - self._ahead_ms) > CLOCK_STEP_MS
        if is_stale:
            self._ahead_ms = ahead_ms
        await self._agenda.gather(now, (topic.activity for topic in self._topics.loaded if is_stale))
        unloading: list[BrokerTopic] = []
        for number, activity in enumerate(self._agenda.due(now)):
            if number % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
            topic = self._topics.find(activity.name)
            if topic is None or topic.activity is not activity:
                self._agenda.forget(activity)
                continue
            if await self._look(topic) is IdleAction.UNLOAD:
                unloading.append(topic)
            seconds = 0.0 if self._agenda.happened(activity) else self.seconds_to_next(topic)
            self._agenda.plan(activity, now, seconds)
        for first in range(0, len(unloading), UNLOADS_AT_ONCE_MAX):
            await asyncio.gather(*map(self._unload_idle, unloading[first : first + UNLOADS_AT_ONCE_MAX]))

    def seconds_to_next(self, topic: BrokerTopic) -> float:
        """Return the seconds until a topic has something due by time, if nothing happens in it until then."""
        now_ms = topic.ledger.ages.now_ms()
        due_ms = min(topic.due_ms(now_ms), expiry_due_ms(topic, now_ms), self.idle.due_ms(topic, now_ms))
        due_ms = min(due_ms, last_ledger_due_ms(topic, now_ms))
        return (due_ms - now_ms) / 1_000

    async def _look(self, topic: BrokerTopic) -> IdleAction:
        self.looks += 1
        topic.ledger.roll_if_due()
        leave_last_ledger_if_due(topic)
        topic.compaction.start_if_due(topic.policies.compaction_threshold_bytes)
        for duty in (partial(expire_by_policy, topic), topic.trim, topic.housekeep):
            if topic.is_open:
                await self._run_duty(duty, topic)
        action = self.idle.look(topic)
        if action is IdleAction.DELETE and self._delete_idle is not None:
            await self._run_duty(partial(self._delete_idle, topic), topic)
        return action

    async def _run_duty(self, duty: Callable[[], Awaitable[object]], topic: BrokerTopic) -> None:
        """Run one duty of a topic. Its failure is logged and does not stop the other duties."""
        try:
            await duty()
        except ServiceNotReadyError as error:
            topic.abandon(error)
        except HeliographError as error:
            log.warning("%s: housekeeping failed: %s", topic.name, error)

    async def _unload_idle(self, topic: BrokerTopic) -> None:
        if is_in_use(topic):
            return
        topic.begin_close()
        try:
            await self._topics.unload(topic.name)
        except HeliographError as error:
            topic.abandon(error)


async def trim_with_last(topic: BrokerTopic) -> int:
    """Trim a topic as a command asks: also of the last ledger of a dormant topic, though clients use the topic.

    Returns:
        how many ledgers were deleted. The last ledger stays if no other can be made in time; call again.
    """
    count = await topic.trim()
    now_ms = topic.ledger.ages.now_ms()
    if _unneeded_last_due_ms(topic, now_ms) > now_ms:
        return count
    await topic.ledger.roll()
    return count + await topic.trim()


def leave_last_ledger_if_due(topic: BrokerTopic) -> None:
    """Have a dormant topic get another ledger, so that its last one can be trimmed, if ``last_ledger_due_ms`` says."""
    now_ms = topic.ledger.ages.now_ms()
    if last_ledger_due_ms(topic, now_ms) <= now_ms:
        topic.ledger.leave_last()


def last_ledger_due_ms(topic: BrokerTopic, now_ms: int) -> int:
    """Return when retention lets go of the last ledger of a dormant topic that nobody uses. One with clients is left at
    its age; one without would be unloaded before that, and keep the ledger for ever."""
    return NEVER_MS if topic.producers or topic.has_consumers else _unneeded_last_due_ms(topic, now_ms)


def _unneeded_last_due_ms(topic: BrokerTopic, now_ms: int) -> int:
    ledger, mark = topic.ledger, topic.needed_mark()
    if ledger.state is not WriteState.DORMANT or (mark is not None and mark < ledger.chain.end):
        return NEVER_MS
    return last_due_ms(ledger.record, now_ms, topic.policies)

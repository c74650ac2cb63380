"""Durable subscriptions whose cursors are not loaded yet, and the queue of their recoveries.

A topic is open for publishing before its cursors are recovered, and a consumer waits for its own cursor only. The
recoveries of one broker share ``RECOVERIES_AT_ONCE_MAX`` places (I15), so that many subscriptions do not delay what
producers send; those that a caller waits for go first. A recovery that fails is repeated by housekeeping, and by the
next caller that needs the subscription.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from heliograph.actors.broker.subscription.state import SUBSCRIPTION_LIFECYCLE, SubscriptionState
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata.errors import NoNodeError

RECOVERIES_AT_ONCE_MAX = 16  # cursors of one broker; each is about ten requests to the store and the bookies

log = logging.getLogger(__name__)


class PendingSubscription:
    """A durable subscription whose cursor is not loaded.

    Attributes:
        state: RECOVERING or UNAVAILABLE; changed by ``SUBSCRIPTION_LIFECYCLE`` only.
        error: why it cannot be used now.
        needs_head: whether its cursor may need the oldest ledgers of the topic (I14).
        is_to_be_deleted: whether it is recovered only to be deleted.
    """

    def __init__(self, topic: str, name: str) -> None:
        self.name = name
        self.state = SubscriptionState.RECOVERING
        self.needs_head = True
        self.is_to_be_deleted = False
        self._recovering = ServiceNotReadyError(f"subscription {name} of {topic} is being recovered, try again")
        self.error: HeliographError = self._recovering
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Start another attempt."""
        self._move(SubscriptionState.RECOVERING)
        self.error = self._recovering
        self._done = asyncio.get_running_loop().create_future()

    def end(self, to: SubscriptionState, error: HeliographError | None) -> None:
        """End the attempt, and wake its waiters."""
        self._move(to)
        if error is None:
            self._done.set_result(None)
            return
        self.error = error
        self._done.set_exception(error)
        self._done.exception()  # seen: there may be nobody that waits

    async def attempted(self) -> None:
        """Wait until the attempt has ended. Raises its error."""
        await shielded(self._done)

    def _move(self, to: SubscriptionState) -> None:
        self.state = SUBSCRIPTION_LIFECYCLE.move(self.state, to)


class RecoveryQueue:
    """The recoveries of one broker: a bounded number at once, first the recoveries that a caller waits for."""

    def __init__(self, at_once_max: int = RECOVERIES_AT_ONCE_MAX) -> None:
        self._at_once_max = at_once_max
        self._urgent: dict[PendingSubscription, Callable[[], Awaitable[None]]] = {}
        self._others: dict[PendingSubscription, Callable[[], Awaitable[None]]] = {}
        self._running: dict[PendingSubscription, asyncio.Task[None]] = {}

    def add(self, pending: PendingSubscription, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` when there is a place."""
        self._others[pending] = work
        self._fill()

    def hurry(self, pending: PendingSubscription) -> None:
        """Move a queued recovery before the recoveries that nobody waits for."""
        work = self._others.pop(pending, None)
        if work is not None:
            self._urgent[pending] = work

    def cancel(self, pending: PendingSubscription) -> asyncio.Task[None] | None:
        """Drop a queued recovery, or cancel a running one and return it."""
        self._urgent.pop(pending, None)
        self._others.pop(pending, None)
        task = self._running.get(pending)
        if task is not None:
            task.cancel()
        return task

    def _fill(self) -> None:
        while len(self._running) < self._at_once_max and (waiting := self._urgent or self._others):
            pending = next(iter(waiting))
            task = asyncio.get_running_loop().create_task(self._run(waiting.pop(pending)))
            self._running[pending] = task
            task.add_done_callback(partial(self._ended, pending))

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        await work()

    def _ended(self, pending: PendingSubscription, task: asyncio.Task[None]) -> None:
        if self._running.get(pending) is task:  # otherwise a caller that it told of its end began another attempt
            del self._running[pending]
        self._fill()


class SubscriptionRecoveries:
    """The subscriptions of one topic that are not loaded. All calls on one event loop.

    Args:
        recover: recovers the cursor and adds the subscription to the topic, or raises why it cannot.

    Attributes:
        pending: by name.
    """

    def __init__(
        self, topic: str, queue: RecoveryQueue, recover: Callable[[PendingSubscription], Awaitable[None]]
    ) -> None:
        self.pending: dict[str, PendingSubscription] = {}
        self._topic = topic
        self._queue = queue
        self._recover = recover
        self._end: HeliographError | None = None

    @property
    def needs_head(self) -> bool:
        """Return whether an unknown cursor may need the oldest ledgers of the topic (I14)."""
        return any(one.needs_head for one in self.pending.values())

    def begin(self, name: str) -> None:
        """Recover a subscription in the background."""
        assert name not in self.pending, "one recovery of a subscription at a time"
        if self._end is not None:
            return
        pending = self.pending[name] = PendingSubscription(self._topic, name)
        self._enqueue(pending)

    def repeat(self) -> None:
        for pending in self.pending.values():
            if pending.state is SubscriptionState.UNAVAILABLE:
                self._begin_again(pending)

    async def recovered(self, name: str) -> None:
        """Wait until a subscription is loaded, if it is not; a recovery that failed is repeated.

        Raises:
            HeliographError: it cannot be used now.
        """
        pending = self.pending.get(name)
        if pending is None:
            return
        if pending.state is SubscriptionState.UNAVAILABLE:
            self._begin_again(pending)
        self._queue.hurry(pending)
        await pending.attempted()

    async def all_recovered(self) -> None:
        """Wait until every subscription is loaded. Raises as ``recovered`` does."""
        for name in list(self.pending):
            await self.recovered(name)

    async def stop(self, error: HeliographError) -> None:
        """End all recoveries and wait for their ends; their waiters get ``error``."""
        running = [task for pending in self.pending.values() if (task := self._queue.cancel(pending)) is not None]
        self.abandon(error)
        if running:
            await asyncio.wait(running)

    def abandon(self, error: HeliographError) -> None:
        """End all recoveries. A request that was sent already changes nothing: the record's version has moved then."""
        self._end = error
        pending, self.pending = list(self.pending.values()), {}
        for one in pending:
            self._queue.cancel(one)
            if one.state is SubscriptionState.RECOVERING:
                one.end(SubscriptionState.CLOSED, error)

    def _begin_again(self, pending: PendingSubscription) -> None:
        pending.begin()
        self._enqueue(pending)

    def _enqueue(self, pending: PendingSubscription) -> None:
        self._queue.add(pending, lambda: self._attempt(pending))

    async def _attempt(self, pending: PendingSubscription) -> None:
        before = str(pending.error)
        error: HeliographError | None = None
        to = SubscriptionState.OPEN
        try:
            await self._recover(pending)
        except NoNodeError:
            log.info("%s: subscription %s was deleted before it was recovered", self._topic, pending.name)
            to = SubscriptionState.CLOSED
        except HeliographError as failure:
            error, to = failure, SubscriptionState.UNAVAILABLE
            if str(failure) != before:
                log.error("%s: subscription %s cannot be used: %s", self._topic, pending.name, failure)
        if pending.state is not SubscriptionState.RECOVERING:
            return  # the topic was closed or lost meanwhile
        if to is not SubscriptionState.UNAVAILABLE:
            del self.pending[pending.name]
        pending.end(to, error)

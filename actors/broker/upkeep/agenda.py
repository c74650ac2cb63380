"""When each topic is looked at next: a wheel of seconds, and the topics in which something happened.

A time on the wheel may be too early, which costs a look, but is never too late: whatever brings it forward is noted in
the topic's activity. If a note were ever missed, ``REST_SECONDS_MAX`` bounds what that delays.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Iterator

from heliograph.actors.broker.records.activity import ChangedTopics, TopicActivity

# From one look at a topic to the next, at most and at least half of it: 100,000 topics at rest take 0.2 % of a core.
REST_SECONDS_MAX = 3_600
CHANGES_A_TURN = 1_000  # of the event loop: less than a millisecond


class Agenda:
    """The loaded topics by the second of their next look. Each is in one place: due, or on the wheel.

    Args:
        changed: the topics with new activity, and topics that were loaded or closed.
    """

    def __init__(self, changed: ChangedTopics) -> None:
        self._changed = changed
        self._due: dict[TopicActivity, bool] = {}  # to be looked at now; whether something happened in it
        self._wheel: dict[int, dict[TopicActivity, None]] = {}  # by second; at most REST_SECONDS_MAX of them  # I15
        self._seconds: list[int] = []  # the keys of ``_wheel``, as a heap
        self._places: dict[TopicActivity, int] = {}  # the second of each topic that is on the wheel

    def __len__(self) -> int:
        return len(self._due) + len(self._places)

    @property
    def due_count(self) -> int:
        """Return how many topics are due, as far as they were taken."""
        return len(self._due)

    async def gather(self, now: float, also: Iterable[TopicActivity] = ()) -> None:
        """Take the topics that are due in turns of the event loop, so that few are left to ``due``.

        A change of policies may concern all topics, and all may have been planned for one second.

        Args:
            now: seconds of a monotonic clock.
            also: topics to look at in this round, whenever they were to be.
        """
        number = 0
        for taken in (self._take_changed(), self._take_planned(now), self._bring_forward(also)):
            for _ in taken:
                number += 1
                if number % CHANGES_A_TURN == 0:
                    await asyncio.sleep(0)

    def due(self, now: float) -> list[TopicActivity]:
        """Return the topics to look at. Each stays due until it is planned or forgotten.

        Args:
            now: seconds of a monotonic clock.
        """
        for taken in (self._take_changed(), self._take_planned(now)):
            for _ in taken:
                pass
        return list(self._due)

    def happened(self, activity: TopicActivity) -> bool:
        """Return whether a topic is due because something happened in it, and not by time alone."""
        return self._due[activity]

    def plan(self, activity: TopicActivity, now: float, seconds: float) -> None:
        """Look at a topic that was due again after so many seconds; after 0 or less in the next round."""
        if seconds <= 0:
            self._due[activity] = False
            return
        del self._due[activity]
        rest = REST_SECONDS_MAX - activity.name.bundle_hash % (REST_SECONDS_MAX // 2)  # topics of one burst are spread
        second = int(now + min(seconds, rest)) + 1
        if second not in self._wheel:
            self._wheel[second] = {}
            heapq.heappush(self._seconds, second)
        self._wheel[second][activity] = None
        self._places[activity] = second

    def forget(self, activity: TopicActivity) -> None:
        """Forget a topic that is not loaded any more."""
        self._due.pop(activity, None)
        self._take_off(activity)

    def _take_changed(self) -> Iterator[None]:
        for activity in self._changed.take():
            self._take_off(activity)
            self._due[activity] = True
            yield

    def _take_planned(self, now: float) -> Iterator[None]:
        while self._seconds and self._seconds[0] <= now:
            planned = self._wheel[self._seconds[0]]
            while planned:  # a topic may leave it while the caller pauses
                activity, _ = planned.popitem()
                del self._places[activity]
                self._due.setdefault(activity, False)
                yield
            del self._wheel[heapq.heappop(self._seconds)]

    def _bring_forward(self, activities: Iterable[TopicActivity]) -> Iterator[None]:
        for activity in activities:
            self._take_off(activity)
            self._due.setdefault(activity, False)
            yield

    def _take_off(self, activity: TopicActivity) -> None:
        second = self._places.pop(activity, None)
        if second is not None:
            del self._wheel[second][activity]  # an empty second stays until it has passed

"""Notes of changes in topics, for periodic work: each job looks only at the topics in which something happened.

A topic at rest is in no queue, so it costs such a job nothing, however many topics there are. Notes are made on the
path of each entry, so the second note costs the reading of one field.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from heliograph.protocol.topic_name import TopicName


class ChangedTopics:
    """The queue of one periodic job: topics in which something happened since the job looked at them last. A topic that
    is not loaded any more is there once, too, so that the job forgets it."""

    __slots__ = ("_changed", "bit")

    def __init__(self, bit: int) -> None:
        self.bit = bit  # of this queue among those of the broker, in ``TopicActivity``
        self._changed: deque[TopicActivity] = deque()  # each once, so at most one for each open topic  # I15

    def __len__(self) -> int:
        return len(self._changed)

    def append(self, activity: TopicActivity) -> None:
        """Add a topic that is not in the queue."""
        self._changed.append(activity)

    def pop(self) -> TopicActivity:
        """Take the topic that waits longest. A later change puts it into the queue again."""
        activity = self._changed.popleft()
        activity.taken_by(self)
        return activity

    def take(self) -> Iterator[TopicActivity]:
        """Yield the topics that are in the queue now, each taken out. The caller may await between them."""
        for _ in range(len(self._changed)):
            if not self._changed:  # another caller took them meanwhile
                return
            yield self.pop()


class TopicActivity:
    """Whether something happened in one topic since each periodic job of the broker looked at it.

    Attributes:
        name: of the topic.
        is_noted: whether the topic is in the queue of every job.
    """

    __slots__ = ("_queued", "_queues", "is_noted", "name")

    def __init__(self, name: TopicName, queues: tuple[ChangedTopics, ...]) -> None:
        self.name = name
        self.is_noted = not queues
        self._queues = queues
        self._queued = 0  # the bits of the queues that the topic is in

    def note(self) -> None:
        """Have every job look at the topic: its counters, cursors, clients, policies or record changed."""
        if self.is_noted:
            return
        self.is_noted = True
        for queue in self._queues:
            if not self._queued & queue.bit:
                self._queued |= queue.bit
                queue.append(self)

    def taken_by(self, queue: ChangedTopics) -> None:
        """Note that a job looks at the topic now."""
        assert self._queued & queue.bit, "a topic is in a queue once"
        self._queued &= ~queue.bit
        self.is_noted = False


UNWATCHED = TopicActivity(TopicName.parse("unwatched"), ())  # of what no broker keeps, as in tests

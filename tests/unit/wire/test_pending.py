"""What waits for bookies' answers, against a plain list of it: each add is answered once, by its own answer."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from heliograph.actors.wire.ranges import PendingAdds, SentRange, Told

LISTENERS = ("one", "other", "third")
STEPS = 60
FRAME_ENTRIES_MAX = 6
TIMEOUT_MS = 10

Add = tuple[str, int]  # listener, tag


class Model:
    """Adds in a dict, one by one, whatever frame they were in."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[Add, int]] = {}

    def take(self, request_ids: Sequence[int]) -> list[Add]:
        found = [self.waiting.pop(request_id, None) for request_id in request_ids]
        return [add for add, _ in filter(None, found)]

    def take_expired(self, now: int) -> list[Add]:
        return self.take([request_id for request_id, (_, due) in self.waiting.items() if due <= now])


class Connection:
    """The adds of one connection, in the product's keeping and in the model's."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.pending, self.model = PendingAdds(), Model()
        self.frames: list[tuple[int, int]] = []  # first and last request id
        self.next_id, self.now = 1, 0

    def step(self) -> None:
        self.now += self.random.randrange(3)
        self.random.choice((self.send, self.send, self.answer, self.answer, self.refuse, self.expire))()
        assert len(self.pending) + self.pending.in_ranges == len(self.model.waiting)  # I15

    def send(self) -> None:
        """Send one entry alone, or several in a frame."""
        count, first = self.random.randrange(1, FRAME_ENTRIES_MAX + 1), self.next_id
        self.next_id += count + self.random.randrange(2)
        due = self.now + TIMEOUT_MS
        adds: list[Told] = []
        for request_id in range(first, first + count):
            listener: Any = self.random.choice(LISTENERS)
            if adds and adds[-1][0] is listener:
                adds[-1][1].append(request_id)
            else:
                adds.append((listener, [request_id]))
            self.model.waiting[request_id] = ((listener, request_id), due)
        if count == 1:
            self.pending[first] = (adds[0][0], first, due)
        else:
            self.pending.put_range(SentRange(first, count, adds, due))
        self.frames.append((first, first + count - 1))

    def answer(self) -> None:
        """Answer a frame as stored: all of it, a part of it, or more than it, for the first time or again."""
        first, last = self.random.choice(self.frames or [(1, 1)])
        first += self.random.choice((0, 0, 0, 1))
        last += self.random.choice((0, 0, -1, -2, 2))
        if first <= last:
            told = [(listener, tag) for listener, tags in self.pending.take_run(first, last) for tag in tags]
            assert sorted(map(str, told)) == sorted(map(str, self.model.take(range(first, last + 1))))  # I1

    def refuse(self) -> None:
        """Answer one entry by itself."""
        request_id = self.random.randrange(1, self.next_id + 2)
        found: Any = self.pending.take(request_id)
        assert ([] if found is None else [found]) == self.model.take([request_id])

    def expire(self) -> None:
        assert sorted(map(str, self.pending.take_expired(self.now))) == sorted(
            map(str, self.model.take_expired(self.now))
        )


@pytest.mark.parametrize("seed", range(40))
def test_each_add_is_answered_once_by_its_own_answer(seed: int) -> None:
    connection = Connection(seed)
    for _ in range(STEPS):
        connection.step()
    left = connection.pending.take_all()
    assert sorted(map(str, left)) == sorted(str(add) for add, _ in connection.model.waiting.values())
    assert connection.pending.in_ranges == len(connection.pending) == 0
    assert connection.pending.take_run(1, connection.next_id) == []

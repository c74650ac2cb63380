"""The budget of unfinished frames holds, hoarders are closed, and no frame waits without end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.base.errors import UnfinishedFrameError
from heliograph.base.guard.frame_budget import (
    BYTES_PER_SECOND_LEAST,
    READ_BYTES_MAX,
    STALE_SECONDS,
    STALL_SECONDS,
    SWEEP_SECONDS,
    FrameBudget,
    UnfinishedFrame,
)
from tests.examples import examples

MIB = 1 << 20
BUDGET = 32 * MIB
DEADLINE = 30.0
FRAME = 5 * MIB


class Peer:
    """A connection that sends frames of a size, and may stop in the middle of one."""

    def __init__(self, budget: FrameBudget, address: str = "a", size: int = FRAME, stops_at: int | None = None) -> None:
        self.frame = UnfinishedFrame(self, address)
        self.size = size
        self.stops_at = stops_at
        self.sent = 0  # of the present frame
        self.done = 0
        self.errors: list[UnfinishedFrameError] = []
        self.is_read = True
        self.is_held_back = False
        self._budget = budget

    def hold_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def drop_frame(self, error: UnfinishedFrameError) -> None:
        self.errors.append(error)

    @property
    def is_open(self) -> bool:
        return not self.errors

    def send(self, now: float, count: int = READ_BYTES_MAX) -> bool:
        """Have the listener read once; return False if there is nothing to read, or it does not read."""
        most = self.size if self.stops_at is None else self.stops_at
        count = min(count, most - self.sent)
        if not self.is_open or not self.is_read or self.is_held_back or count <= 0:
            return False
        self.sent += count
        if self.sent == self.size:
            self.sent, self.done = 0, self.done + 1
            self._budget.note(self.frame, 0, 4, now, is_new=True)
        else:
            self._budget.note(self.frame, self.sent, self.size - self.sent, now, is_new=False)
        return True


def budget(size: int = BUDGET) -> FrameBudget:
    return FrameBudget(size, DEADLINE)


def test_a_frame_that_does_not_arrive_in_time_ends_its_connection() -> None:
    shared = budget()
    slow, done = Peer(shared, stops_at=BYTES_PER_SECOND_LEAST), Peer(shared, size=10)
    slow.send(100.0)
    done.send(100.0, 5)
    done.send(101.0)
    shared.sweep(100.0 + DEADLINE)
    assert slow.is_open, "16 KiB more give a second more"
    shared.sweep(101.0 + DEADLINE)
    assert [error.field for error in slow.errors] == ["unfinished_ms_max"]
    assert done.is_open
    assert (shared.held_bytes, shared.dropped, shared.is_empty) == (0, 1, True)
    shared.forget(slow.frame, 200.0)


def test_a_drip_does_not_keep_a_frame_alive() -> None:
    shared = budget()
    loris = Peer(shared)
    now = 0.0
    while loris.is_open and now < 1_000:
        loris.send(now, 1)
        shared.sweep(now)
        now += SWEEP_SECONDS
    assert DEADLINE <= now <= DEADLINE + 2


def test_each_frame_has_its_own_time() -> None:
    shared = budget()
    busy = Peer(shared, size=1_000)
    for number in range(100):  # each read completes a frame and begins the next
        shared.note(busy.frame, 10, 990, float(number), is_new=True)
        shared.sweep(float(number))
    assert busy.is_open


def test_the_time_in_which_the_listener_does_not_read_a_socket_does_not_count() -> None:
    shared = budget()
    throttled = Peer(shared)
    throttled.send(0.0)
    throttled.is_held_back = True
    shared.sweep(DEADLINE + 20)
    assert throttled.is_open
    throttled.is_held_back = False
    shared.restart(throttled.frame, 1_000.0)
    shared.sweep(1_000.0 + DEADLINE)
    assert throttled.is_open
    shared.sweep(1_020.0 + DEADLINE)
    assert not throttled.is_open


def test_many_large_frames_at_once_all_arrive() -> None:
    """They wait for room, and none of them is closed: peers that send are no hoarders."""
    shared = budget()
    peers = [Peer(shared, address=f"host-{number % 3}") for number in range(100)]
    now = 0.0
    while any(peer.done == 0 for peer in peers):
        sent = [peer.send(now) for peer in peers if peer.done == 0]
        assert any(sent), "one peer at least is read"
        assert shared.held_bytes <= BUDGET
        now += 0.1  # much later than stale
        shared.sweep(now)
    assert shared.dropped == 0
    assert shared.held_bytes == 0


def test_hoarders_are_closed_and_a_client_of_the_same_address_goes_on() -> None:
    shared = budget()
    hoarders = [Peer(shared, stops_at=FRAME - 1) for _ in range(150)]
    client = Peer(shared)
    now, done_at = 0.0, []
    while client.done < 20 and now < 200:
        for peer in hoarders:
            peer.send(now)
        while client.send(now):
            if client.sent == 0:
                done_at.append(now)
                break
        assert shared.held_bytes <= BUDGET
        now += 0.05
        if int(now * 20) % 10 == 0:
            shared.sweep(now)
    assert client.is_open
    assert client.done == 20
    assert now < 2 * STALE_SECONDS + 5, "the first waits until hoarding is noticed, the rest do not"


def test_an_address_that_hoards_leaves_room_to_others() -> None:
    large = 4 * BUDGET
    shared = budget(large)
    hoarders = [Peer(shared, "bad", stops_at=FRAME - 1) for _ in range(150)]
    now = 0.0
    for _ in range(40):
        for peer in hoarders:
            peer.send(now)
    assert large // 2 <= shared.held_bytes <= large // 2 + FRAME + READ_BYTES_MAX, "its share and a preferred frame"
    client = Peer(shared, "good")
    for _ in range(20):
        while client.send(now) and client.sent:
            assert client.is_read, "it never waits"
    assert client.done == 20


def test_above_the_whole_budget_the_oldest_of_the_heaviest_is_closed_at_once() -> None:
    shared = budget()
    client = Peer(shared, "good")
    client.send(0.0)
    crowd = [Peer(shared, "bad") for _ in range(200)]
    for peer in crowd:  # one read each, before anything can be held back
        peer.send(0.0)
        assert shared.held_bytes <= BUDGET
    assert sum(not peer.is_open for peer in crowd) == shared.dropped > 0
    assert {error.field for peer in crowd for error in peer.errors} == {"unfinished_bytes_max"}
    assert client.is_open


def test_a_stalled_frame_does_not_keep_the_place_of_the_preferred() -> None:
    shared = budget()
    # All wait; the one that lacks the least is preferred, and sends nothing more.
    crowd = [Peer(shared) for _ in range(80)]
    while sum(peer.send(0.0) for peer in crowd if peer.sent < FRAME - MIB):
        pass
    preferred = [peer for peer in crowd if peer.is_open and peer.is_read]
    assert len(preferred) == 1
    shared.sweep(STALL_SECONDS - 0.1)
    assert preferred[0].is_open
    shared.sweep(STALL_SECONDS)
    assert not preferred[0].is_open
    assert any(peer.is_read for peer in crowd if peer.is_open), "others have its room"


def test_waiting_peers_are_read_on_when_a_peer_leaves() -> None:
    shared = budget()
    crowd = [Peer(shared) for _ in range(70)]
    for peer in crowd:
        peer.send(0.0)
    waiting = [peer for peer in crowd if not peer.is_read]
    assert waiting
    for peer in crowd:
        if peer.is_read:
            shared.forget(peer.frame, 0.0)
    assert all(peer.is_read for peer in waiting[:20])


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 60), st.integers(1, 4))
def test_any_history_keeps_the_budget_and_leaves_nothing_behind(seed: int, count: int, addresses: int) -> None:
    chance = random.Random(seed)
    shared = budget()
    peers = [
        Peer(
            shared,
            f"host-{number % addresses}",
            chance.choice([100, 300_000, FRAME]),
            chance.choice([None, None, 50, 299_999]),
        )
        for number in range(count)
    ]
    now = 0.0
    for _ in range(600):
        peer = chance.choice(peers)
        match chance.randrange(12):
            case 0:
                shared.sweep(now)
            case 1:
                peer.is_held_back = not peer.is_held_back
                if not peer.is_held_back:
                    shared.restart(peer.frame, now)
            case 2 if not peer.is_open or chance.random() < 0.2:
                shared.forget(peer.frame, now)
                peers[peers.index(peer)] = Peer(shared, peer.frame.address, peer.size, peer.stops_at)
            case _:
                peer.send(now, chance.choice([1, 1_000, READ_BYTES_MAX]))
        now += chance.choice([0.0, 0.01, 0.5])
        assert shared.held_bytes == sum(peer.frame.held + peer.frame.promised for peer in peers) <= BUDGET
        assert all(peer.frame.is_waiting is not peer.is_read for peer in peers if peer.is_open)
        waiting = [peer for peer in peers if peer.is_open and not peer.is_read]
        assert not waiting or any(peer.frame.held and peer.is_read for peer in peers if peer.is_open)
    for peer in peers:
        shared.forget(peer.frame, now)
    assert shared.is_empty
    assert shared.held_bytes == 0


@pytest.mark.parametrize("is_held_back", [False, True])
def test_stale_frames_give_room_unless_the_listener_itself_holds_them_back(is_held_back: bool) -> None:
    shared = budget()
    idle = [Peer(shared, stops_at=FRAME - 1) for _ in range(3)]
    for peer in idle:
        while peer.send(0.0):
            pass
        peer.is_held_back = is_held_back
    client = Peer(shared)
    while client.send(STALE_SECONDS) and client.done == 0:
        pass
    assert client.done == 1
    assert sum(not peer.is_open for peer in idle) == (0 if is_held_back else 1), "as few as give the room"

"""The guard of a listener watches deadlines while there are frames, and counts connections."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from heliograph.base.errors import UnfinishedFrameError
from heliograph.base.guard.frame_budget import SWEEP_SECONDS, UnfinishedFrame
from heliograph.base.guard.listener import ListenerGuard, ListenerLimits
from heliograph.base.peer import peer_address

MIB = 1 << 20
WAIT_SECONDS_MAX = 60


class Reader:
    is_held_back = False

    def __init__(self) -> None:
        self.dropped = asyncio.Event()

    def hold_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def drop_frame(self, error: UnfinishedFrameError) -> None:
        self.dropped.set()


def guard(unfinished_ms: int) -> ListenerGuard:
    return ListenerGuard("a server", ListenerLimits(3, 2, 32 * MIB, unfinished_ms))


async def test_a_late_frame_is_found_without_further_reads() -> None:
    shared, reader = guard(1), Reader()
    frame = UnfinishedFrame(reader, "a")
    shared.note(frame, 1, 3, is_new=False)
    assert shared.unfinished_bytes == 1
    await asyncio.wait_for(reader.dropped.wait(), WAIT_SECONDS_MAX)
    assert (shared.unfinished_bytes, shared.unfinished_closed) == (0, 1)
    assert shared._sweeper is None, "nothing is left to watch"


@pytest.mark.slow
async def test_time_in_which_the_process_did_not_run_does_not_count() -> None:
    shared, reader = guard(round(1_500 * SWEEP_SECONDS)), Reader()
    shared.note(UnfinishedFrame(reader, "a"), 1, 3, is_new=False)
    time.sleep(3 * SWEEP_SECONDS)  # noqa: ASYNC251 - the loop is blocked
    await asyncio.sleep(0)
    assert not reader.dropped.is_set()
    await asyncio.wait_for(reader.dropped.wait(), WAIT_SECONDS_MAX)


def test_connections_are_counted_and_refusals_say_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    shared = guard(1_000)
    assert [shared.admit(address) for address in ("a", "a", "a", "b", "c")] == [True, True, False, True, False]
    assert shared.refused == 2
    assert "a has 2 connections, one address may have 2" in caplog.text
    assert "there are 3 connections, 3 may be open" in caplog.text
    shared.leave("a")
    shared.configure(ListenerLimits(3, 1, 32 * MIB, 1_000))
    assert [shared.admit(address) for address in ("a", "c")] == [False, True]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("10.0.0.7", 1234), "10.0.0.7"),
        (("::1", 1, 0, 0), "::1"),
        (("::ffff:10.0.0.7", 1, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", "?"),
        (None, "?"),
    ],
)
def test_what_counts_as_one_address(name: object, address: str) -> None:
    class Transport(asyncio.BaseTransport):
        def get_extra_info(self, what: str, default: object = None) -> object:
            return name

    assert peer_address(Transport()) == address

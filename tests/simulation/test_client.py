"""Tests of our own client in the simulator: clean seeds, the sockets, and what the checkers see."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.actors.broker.records.position import Position
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_chunks, encode_single, plain_head
from heliograph.protocol.message_id import MessageId
from tests.simulation.campaign import run_plan
from tests.simulation.checkers.judge import BrokenInvariantError, Judge
from tests.simulation.clients.checkers import ClientCheckers, label
from tests.simulation.clients.faults import CLIENT_KINDS
from tests.simulation.clients.wire import SocketEnd
from tests.simulation.cluster.store import SimulatedStore
from tests.simulation.profile import CLIENT, Plan
from tests.simulation.topic.faults import TOPIC_KINDS
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.world import Process, World

SEEDS = int(os.environ.get("HELIOGRAPH_SIM_SEEDS", "50")) // 5  # a client's run costs more than a topic's
SEEDS_PER_TEST = 5
P = Position


@pytest.mark.parametrize("start", range(0, SEEDS, SEEDS_PER_TEST))
def test_seeds_are_clean(start: int) -> None:
    failures = []
    for seed in range(start, min(start + SEEDS_PER_TEST, SEEDS)):
        plan = Plan(seed, world=CLIENT)
        report = run_plan(plan)
        if report.failure:
            failures.append(f"python -m tests.simulation {plan.arguments()}: {report.failure}")
        assert report.confirmed, "something is published in every run"
        assert report.counts["message received"], "and received"
    assert not failures, "\n".join(failures)


def test_kinds_of_faults() -> None:
    names = [kind.name for kind in CLIENT_KINDS]
    assert len(names) == len(set(names)) == len(TOPIC_KINDS) + 4


# Sockets


class Received(asyncio.Protocol):
    """Notes what comes."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def data_received(self, data: bytes) -> None:
        self.told.append(data.decode())

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


def ends() -> tuple[World, list[Received], list[SocketEnd], list[str]]:
    """Return two ends of a socket without a network, their protocols, and the list of cuts."""
    world, cuts = World(0), list[str]()
    loop = SimulatedLoop(world, Process("both"))
    near, far = (SocketEnd(loop, lambda act: act(), lambda: cuts.append("cut"), world.stream("splits")) for _ in "nf")
    near.peer, far.peer = far, near
    protocols = [Received(), Received()]
    for end, protocol in zip((near, far), protocols, strict=True):
        end.open(protocol)
    return world, protocols, [near, far], cuts


def test_bytes_come_in_order_perhaps_in_parts_and_the_end_after_them() -> None:
    world, (_, there), (near, far), _ = ends()
    for _ in range(50):
        near.write(b"word ")
    far.pause_reading()
    near.writelines([b"a", memoryview(b"b")])
    assert "".join(there.told) == "word " * 50
    assert len(there.told) > 50
    far.resume_reading()
    while world.step():
        pass
    assert "".join(there.told) == "word " * 50 + "ab"
    near.close()
    while world.step():
        pass
    assert (there.told[-1], near.is_closing(), far.is_closing()) == ("lost", True, True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_breaks_before_or_after_an_answer(when: str) -> None:
    _, (here, _), (near, far), cuts = ends()
    near.breaks = when
    far.write(b"x")
    assert (here.told == ["x"], cuts) == (when == "after", ["cut"])


# What the checkers see


def checkers(*, is_deduplicated: bool = True) -> ClientCheckers:
    world = World(0)
    store = cast(SimulatedStore, SimpleNamespace(world=world, on_topic=[], watchers=[]))
    return ClientCheckers(store, Judge(), {}, [], is_deduplicated=is_deduplicated, is_counted=False)


def entry(sequence_id: int, number: int) -> bytes:
    value = label("p", number)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    return encode_single(metadata, plain_head(len(value)), value)


def called(*numbers: int, is_deduplicated: bool = True) -> ClientCheckers:
    made = checkers(is_deduplicated=is_deduplicated)
    for number in numbers:
        made.on_call("p", [number], ["k"])
        made.receipts[P(1, number)] = "p", number, 1
        made.on_outcome("p", number, MessageId(1, number))
    return made


def test_an_outcome_is_checked_against_what_brokers_said() -> None:
    made = called(1, 2)
    for number, outcome in ((2, MessageId(1, 2)), (3, MessageId(1, 1)), (4, MessageId(1, 9))):
        made.calls["p"].setdefault(number, None)
        with pytest.raises(BrokenInvariantError, match="calls"):
            made.on_outcome("p", number, outcome)
    made.on_call("p", [5], ["k"])
    with pytest.raises(BrokenInvariantError, match="flush"):
        made.check_settled("p", [1, 2, 5], "flush")


@pytest.mark.parametrize(
    ("contents", "broken"),
    [
        ([(1, entry(0, 1)), (2, entry(1, 2))], ""),
        ([(1, entry(0, 1))], "I1"),  # the second one is gone
        ([(1, entry(0, 1)), (2, entry(1, 2)), (3, entry(1, 2))], "I12"),  # stored twice, though the topic deduplicates
        ([(2, entry(1, 2)), (3, entry(0, 1))], "I2"),
    ],
)
def test_calls_are_checked_against_what_the_topic_holds(contents: list[tuple[int, bytes]], broken: str) -> None:
    made = called(1, 2)
    stored = [(P(1, at), section) for at, section in contents]
    if not broken:
        made.check_calls(stored, is_read_once=True)
        return
    with pytest.raises(BrokenInvariantError, match=broken):
        made.check_calls(stored, is_read_once=True)


def test_a_message_in_chunks_is_where_its_last_chunk_is() -> None:
    made = called(3)
    whole = label("p", 3) * 10
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    chunks = encode_chunks(metadata, plain_head(len(whole)), whole, pb.NONE, 10)
    stored = [(P(1, at), chunk) for at, chunk in enumerate(chunks[:2] + chunks)]  # it began again
    made._given.clear()
    made.calls["p"][3] = MessageId(1, len(stored) - 1)
    made.check_calls(stored, is_read_once=True)
    with pytest.raises(BrokenInvariantError, match="I1"):
        made.check_calls(stored[:-1], is_read_once=True)


def test_names_of_entries_grow_with_their_arrival_and_chunks_may_begin_again() -> None:
    made: Any = checkers()
    assert [made.number_of(entry(at, at)) for at in (1, 2, 1)] == [1, 2, 1]
    assert made.name_of(entry(2, 2)) == "p:2"
    assert made.may_follow("p", 1, 0)
    assert made.may_follow("p", 2, 1)
    assert not made.may_follow("p", 1, 2)
    assert not made.may_follow("p", 2, 2)
    loose: Any = checkers(is_deduplicated=False)
    assert loose.may_follow("p", 2, 0)
    assert loose.may_follow("p", 2, 2)
    assert not loose.may_follow("p", 1, 2)

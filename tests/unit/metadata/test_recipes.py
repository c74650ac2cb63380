"""The recipes on the metadata port: updates, ids, elections, the first nodes, opening by URL."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from heliograph.base.errors import ConflictError, InvalidConfigError
from heliograph.metadata import codec
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.codec import decode, encode
from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import (
    BadVersionError,
    ConnectionLossError,
    InvalidPathError,
    NoNodeError,
    RecordError,
    SessionExpiredError,
)
from heliograph.metadata.model import ClusterRecord, NamespacePolicies, TopicRecord
from heliograph.metadata.operator_records import LedgerIdBase
from heliograph.metadata.paths import (
    CLUSTER,
    LEDGER_ID_BASE,
    PERSISTENT_NODES,
    bookie_available,
    bookie_readonly,
    broker_available,
    election,
    ledger,
    ledger_id_of,
    namespace,
)
from heliograph.metadata.recipes import update_loop
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.recipes.election import Election, Leadership
from heliograph.metadata.recipes.ids import IDS_AT_ONCE_MAX, next_ledger_id
from heliograph.metadata.recipes.occupancy import require_vacant
from heliograph.metadata.recipes.update_loop import read, update
from heliograph.metadata.store import Create, Operation, Set, Watcher


class LossyStore(MemoryStore):
    """A store that loses the requests or the replies of as many writes as it is told to."""

    def __init__(self, server: MemoryServer) -> None:
        session = server.open_session()
        super().__init__(server, session.session_id)
        server._stores[self.session_id] = self
        self.lose_before = 0
        self.lose_after = 0
        self.writes: list[Operation] = []

    async def _write(self, operation: Operation) -> Any:
        if self.lose_before:
            self.lose_before -= 1
            raise ConnectionLossError("not sent")
        result = await super()._write(operation)
        self.writes.append(operation)
        if self.lose_after:
            self.lose_after -= 1
            raise ConnectionLossError("reply lost")
        return result


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_loop, "PAUSE_SECONDS_MAX", 0)
    monkeypatch.setattr("heliograph.metadata.recipes.election.RETRY_PAUSE_SECONDS", 0)


def counted(topic: TopicRecord) -> TopicRecord:
    return dataclasses.replace(topic, created_ms=topic.created_ms + 1)


async def test_updates_of_many_are_all_there(server: MemoryServer) -> None:
    stores = [server.open_session() for _ in range(10)]
    await stores[0].create("/t", encode(TopicRecord("t")))
    results = await asyncio.gather(*(update(store, "/t", TopicRecord, counted) for store in stores))
    assert sorted(result.record.created_ms for result in results) == list(range(1, 11))
    last = await read(stores[0], "/t", TopicRecord)
    assert (last.record.created_ms, last.version) == (10, 10)


async def test_an_update_that_is_not_needed_writes_nothing(server: MemoryServer) -> None:
    store = LossyStore(server)
    await store.create("/t", encode(TopicRecord("t")))
    found = await update(store, "/t", TopicRecord, lambda _: None)
    assert (found.record, found.version) == (TopicRecord("t"), 0)
    assert [type(write) for write in store.writes] == [Create]


@pytest.mark.parametrize("moment", ["lose_before", "lose_after"])
async def test_an_update_recognises_its_own_success_after_a_lost_reply(server: MemoryServer, moment: str) -> None:  # I9
    store = LossyStore(server)
    await store.create("/t", encode(TopicRecord("t")))
    setattr(store, moment, 2)
    done = await update(store, "/t", TopicRecord, lambda topic: counted(topic) if topic.created_ms == 0 else None)
    assert done.record.created_ms == 1
    assert done.version == 1
    assert sum(isinstance(write, Set) for write in store.writes) == 1


async def test_an_update_gives_up_in_the_end(server: MemoryServer) -> None:
    store, rival = LossyStore(server), server.open_session()
    await store.create("/t", encode(TopicRecord("t")))
    store.lose_before = 1_000
    with pytest.raises(ConnectionLossError):
        await update(store, "/t", TopicRecord, counted)
    store.lose_before = 0
    rounds = 0

    def raced(topic: TopicRecord) -> TopicRecord:
        nonlocal rounds
        rounds += 1
        server.apply(rival.session_id, [Set("/t", encode(topic))])
        return counted(topic)

    with pytest.raises(BadVersionError):
        await update(store, "/t", TopicRecord, raced)
    assert rounds == update_loop.ATTEMPTS_MAX  # I15
    with pytest.raises(NoNodeError):
        await update(store, "/none", TopicRecord, counted)
    with pytest.raises(RecordError):
        await read(store, "/t", ClusterRecord)


async def test_ledger_ids_are_unique_and_grow(server: MemoryServer) -> None:
    stores = [LossyStore(server) for _ in range(3)]
    with pytest.raises(NoNodeError):
        await next_ledger_id(stores[0])
    await initialise(stores[0])
    ids = await asyncio.gather(*(next_ledger_id(store) for store in stores * 10))
    assert sorted(ids) == list(range(1, 31))
    stores[0].lose_after = 2
    assert await next_ledger_id(stores[0]) == 33
    assert ledger_id_of(ledger(33)) == 33
    assert ledger_id_of(ledger(123_456_789_012)) == 123_456_789_012


async def test_callers_that_wait_for_a_ledger_id_share_a_request(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, requests = server.open_session(), list[int]()
    await initialise(store)
    multi = store.multi

    async def counted(operations: Sequence[Operation]) -> Any:
        requests.append(len(operations))
        return await multi(operations)

    monkeypatch.setattr(store, "multi", counted)
    callers = [asyncio.create_task(next_ledger_id(store)) for _ in range(IDS_AT_ONCE_MAX + 10)]
    await asyncio.sleep(0)
    callers[3].cancel()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(found.pop(3), asyncio.CancelledError)
    ids = [each for each in found if isinstance(each, int)]
    assert ids == sorted(set(ids)), "in the order of the calls"
    assert len(ids) == IDS_AT_ONCE_MAX + 9
    assert sum(requests) <= IDS_AT_ONCE_MAX + 10
    assert len(requests) <= 3
    assert await next_ledger_id(server.open_session()) > ids[-1]


async def test_a_lost_reply_skips_the_ids_of_all_who_waited(server: MemoryServer) -> None:
    store = LossyStore(server)
    await initialise(store)
    store.lose_after = 1
    ids = [await next_ledger_id(store), *await asyncio.gather(*(next_ledger_id(store) for _ in range(5)))]
    assert ids == sorted(set(ids))
    assert await next_ledger_id(server.open_session()) > ids[-1]


async def test_a_session_reads_the_base_of_ledger_ids_once(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, reads = server.open_session(), list[str]()
    with pytest.raises(NoNodeError):
        await next_ledger_id(store)
    await initialise(store)
    await store.create(LEDGER_ID_BASE, codec.encode(LedgerIdBase(1_000)))
    get = store.get

    async def counted(path: str, watcher: Watcher | None = None) -> Any:
        reads.append(path)
        return await get(path, watcher)

    monkeypatch.setattr(store, "get", counted)
    assert [await next_ledger_id(store) for _ in range(3)] == [1_001, 1_002, 1_003]
    assert reads == [LEDGER_ID_BASE]
    assert await next_ledger_id(server.open_session()) == 1_004


async def test_initialising_is_idempotent_and_agrees(server: MemoryServer) -> None:
    stores = [server.open_session() for _ in range(4)]
    records = await asyncio.gather(*(initialise(store) for store in stores))
    assert len({record.instance_id for record in records}) == 1
    assert await initialise(stores[0]) == records[0]
    for path in (*PERSISTENT_NODES, CLUSTER):
        stat = await stores[0].exists(path)
        assert stat is not None
        assert stat.version == 0
    value, _ = await stores[0].get(namespace("public", "default"))
    assert decode(NamespacePolicies, value) == NamespacePolicies(own=())


async def test_one_leader_at_a_time_in_the_order_of_the_votes(server: MemoryServer) -> None:
    stores = [server.open_session() for _ in range(4)]
    candidates = [Election(store, "x", f"c{number}") for number, store in enumerate(stores)]
    assert await candidates[0].leader() is None
    campaigns: list[asyncio.Task[Leadership]] = []
    for candidate in candidates:
        campaigns.append(asyncio.create_task(candidate.campaign()))
        await settled()
    assert [campaign.done() for campaign in campaigns] == [True, False, False, False]
    assert await candidates[3].leader() == "c0"
    first = campaigns[0].result()

    server.expire_session(stores[1].session_id)  # not the leader: its loss must not elect another
    await settled()
    assert not campaigns[2].done()
    with pytest.raises(SessionExpiredError):
        await campaigns[1]

    assert not first.lost.is_set()
    server.expire_session(stores[0].session_id)
    assert first.lost.is_set()  # I13
    second = await campaigns[2]
    assert second.token > first.token
    assert not candidates[2].lost.is_set()
    await candidates[2].resign()
    assert second.lost.is_set()
    third = await campaigns[3]
    assert third.token > second.token

    again = asyncio.create_task(candidates[2].campaign())
    await settled()
    assert not again.done()
    await candidates[3].resign()
    assert (await again).token > third.token


async def test_a_leader_whose_vote_is_taken_away_knows(server: MemoryServer) -> None:
    store, other = server.open_session(), server.open_session()
    candidate = Election(store, "x", "c")
    won = await candidate.campaign()
    (vote,) = await other.children(election("x"))
    await other.delete(f"{election('x')}/{vote}")
    assert won.lost.is_set()
    assert (await candidate.campaign()).token > won.token


@pytest.mark.parametrize("moment", ["lose_before", "lose_after"])
async def test_a_candidate_recognises_its_vote_after_a_lost_reply(server: MemoryServer, moment: str) -> None:  # I9
    store = LossyStore(server)
    await initialise(store)
    await store.create(election("x"))
    setattr(store, moment, 1)
    candidate = Election(store, "x", "c")
    await candidate.campaign()
    assert len(await store.children(election("x"))) == 1


async def test_resigning_takes_back_a_vote_whose_reply_was_lost(server: MemoryServer) -> None:
    store = LossyStore(server)
    await initialise(store)
    await store.create(election("x"))
    candidate = Election(store, "x", "c")
    await candidate.resign()
    store.lose_after = 1
    campaign = asyncio.create_task(candidate.campaign())
    while len(await store.children(election("x"))) == 0:
        pass
    campaign.cancel()
    await asyncio.wait([campaign])
    await candidate.resign()
    assert await store.children(election("x")) == []


class LaggingStore(LossyStore):
    """A store whose server has not heard of the latest changes: its reads show them after ``sync``."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.lags = False

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        found = await super().children(path, watcher)
        return [] if self.lags else found

    async def sync(self, path: str = "/") -> None:
        await super().sync(path)
        self.lags = False


async def test_resigning_takes_back_a_vote_that_this_clients_server_has_not_heard_of(server: MemoryServer) -> None:
    """Otherwise the lead, or the lock, would stay free until the session ends."""
    store = LaggingStore(server)
    await initialise(store)
    await store.create(election("x"))
    candidate = Election(store, "x", "c")
    store.lose_after = 1
    campaign = asyncio.create_task(candidate.campaign())
    while len(await store.children(election("x"))) == 0:
        pass
    campaign.cancel()
    await asyncio.wait([campaign])
    store.lags = True  # the client is connected to another server now
    await candidate.resign()
    assert await server.open_session().children(election("x")) == []


async def test_a_store_in_which_another_cluster_lives_is_refused(server: MemoryServer) -> None:
    store, theirs = server.open_session(), server.open_session()
    await require_vacant(store, [], 0)  # not initialised
    await initialise(store)
    await require_vacant(store, [], 0)
    for path in (bookie_available("bookie-1"), bookie_readonly("bookie-2"), broker_available("broker-1")):
        await theirs.create(path, ephemeral=True)
    await require_vacant(store, ["bookie-1", "bookie-2", "broker-1", "broker-2"], 0)
    with pytest.raises(ConflictError, match="bookie-2, broker-1"):
        await require_vacant(store, ["bookie-1"], 0)
    waiting = asyncio.create_task(require_vacant(store, [], 10_000))
    await settled()
    assert not waiting.done()
    server.expire_session(theirs.session_id)  # it was dead
    await waiting


def refused(urls: Sequence[str], error: type[Exception]) -> None:
    for url in urls:
        with pytest.raises(error):
            asyncio.run(connect_store(url))


def test_urls_that_are_refused() -> None:
    refused(["", "memory://", "embedded://", "embedded://h", "embedded://h:x", "http://h:1"], InvalidConfigError)
    refused(["memory://bad-chroot/a//b"], InvalidPathError)


async def test_a_memory_url_names_a_shared_store_and_a_chroot() -> None:
    whole = await connect_store("memory://shared-by-test")
    below = await connect_store("memory://shared-by-test/deep/root")
    await below.create("/a", b"v")
    assert await whole.get("/deep/root/a") == await below.get("/a")
    await below.close()
    await whole.close()

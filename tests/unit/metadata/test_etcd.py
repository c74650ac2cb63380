"""The parts of the etcd backend that need no etcd: addresses, keys, records, plans, watches, cached nodes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.backends.etcd.lease_keeper import LeaseKeeper
from heliograph.metadata.backends.etcd.transactions.observed_revisions import ObservedFamily, ObservedNode, Snapshot
from heliograph.metadata.backends.etcd.transactions.plan import CountNeeded, PendingStat, TransactionPlan
from heliograph.metadata.backends.etcd.transactions.transaction import EtcdRequests
from heliograph.metadata.backends.etcd.watching.cached_nodes import CachedNodes, Revisions
from heliograph.metadata.backends.etcd.watching.watch_feed import EtcdWatch, EtcdWatchTable, WatchFeed, changes_in
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress, Tls
from heliograph.metadata.backends.etcd.wire.keys import Keys
from heliograph.metadata.backends.etcd.wire.limits import CACHED_ENTRIES_MAX, DEPTH_MAX
from heliograph.metadata.backends.etcd.wire.modules import etcd_api
from heliograph.metadata.backends.etcd.wire.record import (
    Family,
    NodeHead,
    SessionRecord,
    decode_events,
    decode_family,
    decode_node,
    decode_session,
    encode_events,
    encode_family,
    encode_node,
    encode_session,
)
from heliograph.metadata.credentials import with_password, without_password
from heliograph.metadata.errors import (
    ConnectionLossError,
    InvalidPathError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    RecordError,
)
from heliograph.metadata.session.clock import now
from heliograph.metadata.session.sealing import sealed
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import Create, Delete, EventType, Set, WatchEvent
from tests.waits import block_until

CREATED, DELETED, CHANGED, CHILD = EventType.CREATED, EventType.DELETED, EventType.CHANGED, EventType.CHILD
KEYS = Keys("/p")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("etcd://h", EtcdAddress(("h:2379",))),
        ("etcd://h1:1,h2:2/a/b/", EtcdAddress(("h1:1", "h2:2"), "/a/b")),
        ("etcd://[::1]:5,10.0.0.1/x", EtcdAddress(("[::1]:5", "10.0.0.1:2379"), "/x")),
        ("etcds://h/x", EtcdAddress(("h:2379",), "/x", Tls())),
        ("etcd://me:p%40ss%3A@h/x", EtcdAddress(("h:2379",), "/x", user="me", password="p@ss:")),
        ("etcd://m%40e@h/x", EtcdAddress(("h:2379",), "/x", user="m@e", password="from outside")),
    ],
)
def test_addresses(url: str, expected: EtcdAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_METADATA_PASSWORD", "from outside")
    address = EtcdAddress.parse(url)
    assert address == expected
    assert address.password == "" or address.password not in repr(address)


def test_an_address_with_certificates() -> None:
    tls = EtcdAddress.parse("etcds://h/x?ca=/a/b&cert=c&key=d").tls
    assert tls is not None
    assert [str(path) for path in (tls.ca, tls.cert, tls.key)] == ["/a/b", "c", "d"]


@pytest.mark.parametrize(
    "url",
    ["etcd://", "etcd://h:x", "etcd://h,", "etcd://h:99999/", "etcd://h/a//b", "etcd://h/a:b", "etcd://h/x?ca=/a",
     "etcds://h/x?cert=a", "etcds://h/x?key=a", "etcds://h/x?other=1", "etcd://h/../x"],
)  # fmt: skip
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidConfigError):
        EtcdAddress.parse(url)


def test_passwords_are_put_in_and_taken_out() -> None:
    full = with_password("etcd://me@h1:1,h2:2/x?ca=/a@b", "a b@c:/d")
    assert full == "etcd://me:a%20b%40c%3A%2Fd@h1:1,h2:2/x?ca=/a@b"
    assert EtcdAddress.parse(full.partition("?")[0]).password == "a b@c:/d"
    assert without_password(full) == "etcd://me@h1:1,h2:2/x?ca=/a@b"
    assert with_password("etcd://h/x", "unused") == without_password("etcd://h/x") == "etcd://h/x"


def test_messages_are_built_for_the_installed_protobuf() -> None:
    api = etcd_api()
    create = api.WatchCreateRequest(key=b"k", fragment=True)
    assert api.WatchCreateRequest.FromString(create.SerializeToString()) == create
    assert create.SerializeToString().hex() == "0a016b" + "4001"
    assert etcd_api() is api


def test_keys_keep_children_together_and_stores_apart() -> None:
    paths = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/a/ü", "/a-b"]
    assert [KEYS.path_of(KEYS.node(path)) for path in paths] == paths
    start, end = KEYS.children("/a")
    assert [path for path in paths if start <= KEYS.node(path) < end] == ["/a/b", "/a/ü"]
    start, end = KEYS.children("/")
    assert [path for path in paths if start <= KEYS.node(path) < end] == ["/a", "/ab", "/a-b"]
    start, end = KEYS.below("/a", 3)
    assert [path for path in paths if start <= KEYS.node(path) < end] == ["/a/b/c"]
    longer = Keys("/p/tn0001")
    for path in paths:
        for key in (KEYS.node(path), KEYS.family(path), KEYS.barrier, KEYS.events):
            assert KEYS.tree <= key < KEYS.tree_end
        assert not KEYS.tree <= longer.node(path) < KEYS.tree_end
    assert KEYS.path_of(KEYS.family("/a")) is None
    assert not KEYS.tree <= KEYS.session(1) < KEYS.tree_end
    with pytest.raises(InvalidPathError):
        KEYS.node("/x" * (DEPTH_MAX + 1))


def test_records_come_out_as_they_went_in() -> None:
    head = NodeHead(1, 2, 3, 4)
    assert decode_node(b"k", encode_node(b"k", head, b"value")) == (head, b"value")
    assert decode_family(b"k", encode_family(b"k", Family(5, 3, 9))) == Family(5, 3, 9)
    assert decode_session(b"k", encode_session(b"k", SessionRecord(7, "pw"))) == SessionRecord(7, "pw")
    events = [WatchEvent(CREATED, "/a"), WatchEvent(DELETED, "/a")]
    assert decode_events(b"k", encode_events(b"k", [*events, WatchEvent(CHILD, "/")])) == events


def test_record_layout_is_what_was_written_before() -> None:
    stored = encode_node(b"k", NodeHead(1, 2, 3, 4), b"v")
    assert stored.hex() == "5900323d" + "01" + "".join(f"{n:02x}{'00' * 7}" for n in (1, 2, 3, 4)) + "76"


def test_a_null_value_is_a_flag_of_layout_2() -> None:
    head = NodeHead(1, 2, 3, 4)
    stored = encode_node(b"k", head, None)
    assert (stored[4:5], stored[37:].hex()) == (b"\x02", "00" * 8 + "01")
    assert decode_node(b"k", stored) == (head, None)
    assert decode_node(b"k", encode_node(b"k", head, b"")) == (head, b"")
    with pytest.raises(RecordError, match="upgrade"):
        decode_node(b"k", sealed(b"k", stored[5:-1] + b"\x80", 2))


@given(st.integers(0, 37), st.integers(1, 255))
def test_damaged_records_are_refused(place: int, flip: int) -> None:
    stored = bytearray(encode_node(b"k", NodeHead(1, 2, 3, 4), b"v"))
    stored[place] ^= flip
    for key, value in ((b"k", bytes(stored)), (b"other", encode_node(b"k", NodeHead(1, 2, 3, 4), b"v"))):
        with pytest.raises(RecordError):
            decode_node(key, value)
    with pytest.raises(RecordError):
        decode_node(b"k", bytes(stored[:20]))


def seen(revision: int, **fields: int) -> ObservedNode:
    return ObservedNode(mod_revision=revision, create_revision=revision, czxid=revision, **fields)


def new_plan() -> TransactionPlan:
    nodes = {"/": seen(1), "/a": seen(5, version=2), "/a/e": seen(6, owner=9), "/b": seen(7)}
    families = {"/": ObservedFamily(7, Family(2, 0)), "/a": ObservedFamily(6, Family(3, 1))}
    return TransactionPlan(Snapshot(nodes, families), session_id=9, wall_ms=1_000)


def test_calls_share_a_plan_unless_they_write_the_same_node() -> None:
    plan = new_plan()
    assert plan.run([Create("/c")]) == ["/c"]
    assert plan.run([Create("/c/d", ephemeral=True), Create("/c/n-", sequence=True)]) == ["/c/d", "/c/n-0000000001"]
    assert isinstance(plan.run([Create("/c")]), NodeExistsError)
    assert plan.run([Set("/c", b"x")]) is None
    assert isinstance(plan.run([Set("/b", b""), Delete("/none")]), NoNodeError)
    assert list(plan.nodes) == ["/c", "/c/d", "/c/n-0000000001"]
    assert plan.families == {"/": Family(3, 0), "/c": Family(2, 0)}
    assert plan.nodes["/c/d"].observed.owner == 9
    assert set(plan.looked_nodes) == {"/", "/c", "/c/d", "/c/n-0000000001", "/b", "/none"}
    assert not plan.record_events


def test_a_node_that_is_touched_twice_has_its_events_written_down() -> None:
    plan = new_plan()
    assert plan.run([Create("/c"), Create("/c/d"), Delete("/c/d"), Delete("/b"), Create("/b", b"new")]) == [
        "/c", "/c/d", None, None, "/b",
    ]  # fmt: skip
    assert plan.record_events
    assert [(event.type, event.path) for event in plan.events] == [
        (CREATED, "/c"), (CREATED, "/c/d"), (DELETED, "/c/d"), (DELETED, "/b"), (CREATED, "/b"),
    ]  # fmt: skip
    assert plan.nodes["/b"].fresh
    assert not plan.nodes["/c/d"].exists
    assert plan.families["/c"] == Family(1, 1)


def test_a_delete_counts_children_that_may_have_fallen() -> None:
    plan = new_plan()
    with pytest.raises(CountNeeded) as needed:
        plan.run([Delete("/a")])
    assert needed.value.path == "/a"
    snapshot = plan._snapshot
    snapshot.counts["/a"] = 0
    plan = TransactionPlan(snapshot, 9, 0)
    assert plan.run([Create("/a/x")]) == ["/a/x"]
    failure = plan.run([Set("/b", b""), Delete("/a")])
    assert isinstance(failure, MetadataError)
    assert failure.operation_index == 1
    assert TransactionPlan(snapshot, 9, 0).run([Delete("/a")]) == [None]


def test_a_stat_is_of_the_moment_of_its_operation() -> None:
    plan = new_plan()
    first = plan.run([Set("/a", b"xyz")])
    assert plan.run([Create("/a/x")]) == ["/a/x"]
    assert isinstance(first, list)
    pending = plan.settled(first[0])
    assert isinstance(pending, PendingStat)
    stat = pending.resolved(50, ObservedFamily(50, Family(4, 1)), 2)  # one of three fell with its lease
    assert (stat.version, stat.mzxid, stat.czxid, stat.data_length) == (3, 50, 5, 3)
    assert (stat.num_children, stat.cversion, stat.pzxid) == (1, 5, 6)


def test_what_was_seen_is_bounded() -> None:  # I15
    snapshot = Snapshot({f"/{number}": ObservedNode() for number in range(CACHED_ENTRIES_MAX + 5)})
    snapshot.trim()
    assert len(snapshot.nodes) == CACHED_ENTRIES_MAX
    assert "/4" not in snapshot.nodes


async def test_a_watch_is_told_of_what_came_after_its_read_even_if_it_came_before_the_answer() -> None:
    watches, told = EtcdWatchTable(), list[tuple[str, WatchEvent]]()

    def watcher(name: str) -> Callable[[WatchEvent], None]:
        return lambda event: told.append((name, event))

    once = watches.add(EtcdWatch(WatchKind.DATA, "/a", watcher("once")))
    always = watches.add(EtcdWatch(WatchKind.RECURSIVE, "/", watcher("always")))
    for revision in (5, 6, 7):
        watches.publish(revision, [WatchEvent(CHANGED, "/a")])
    assert told == []
    watches.arm_at(once, 5, None)
    watches.arm_at(always, 6, None)
    await asyncio.sleep(0)
    assert told == [("once", WatchEvent(CHANGED, "/a")), ("always", WatchEvent(CHANGED, "/a"))]
    watches.publish(8, [WatchEvent(CREATED, "/a/b")])
    assert told[2:] == [("always", WatchEvent(CREATED, "/a/b"))]
    child = watches.add(EtcdWatch(WatchKind.CHILD, "/a", watcher("child")))
    watches.arm_at(child, 8, Revisions(1, 5, 8))
    assert watches.missed({"/a": Revisions(1, 9, 8)}) == []
    assert watches.missed({"/a": Revisions(1, 5, 9)}) == [WatchEvent(CHILD, "/a")]
    assert watches.missed({}) == [WatchEvent(DELETED, "/a")]
    watches.publish(8, [WatchEvent(DELETED, "/a/b")])  # was in the answer
    watches.remove(always)
    watches.publish(9, [WatchEvent(DELETED, "/a/b")])
    watches.publish(10, [WatchEvent(CREATED, "/a/b")])
    assert told[4:] == [("child", WatchEvent(CHILD, "/a"))]
    assert len(watches) == 0


def test_a_gap_is_bridged_by_comparing() -> None:
    cached = CachedNodes()
    cached.cover("/a", {"/a": Revisions(1, 1), "/a/b": Revisions(2, 2), "/a/b/c": Revisions(3, 3)})
    cached.apply("/other", Revisions(4, 4), 4)
    cached.apply("/a/d", Revisions(5, 5), 5)
    cached.apply("/a/d", None, 4)  # older than what is known
    cached.apply("/a/d", Revisions(5, 6), 6)
    assert cached.replace({"/a": Revisions(1, 9), "/a/b": Revisions(8, 8), "/a/d": Revisions(5, 6)}) == [
        WatchEvent(DELETED, "/a/b/c"), WatchEvent(DELETED, "/a/b"), WatchEvent(CHANGED, "/a"),
        WatchEvent(CREATED, "/a/b"),
    ]  # fmt: skip
    cached.cover("/", {})
    assert cached.roots == ["/"]
    cached.uncover("/")
    assert cached.roots == ["/a"]
    cached.uncover("/a")
    assert cached.roots == []


def events_of(api: Any, revision: int, *paths: str) -> list[Any]:
    from etcd3.etcdrpc import kv_pb2

    return [kv_pb2.Event(kv=kv_pb2.KeyValue(key=KEYS.node(path), mod_revision=revision, version=1)) for path in paths]


async def test_a_revision_in_fragments_is_told_as_a_whole() -> None:
    api = etcd_api()
    feed = WatchFeed(EtcdRequests(api, KEYS), lambda: None, lambda connection, error: None)
    told: list[WatchEvent] = []
    feed._watches.arm_at(feed._watches.add(EtcdWatch(WatchKind.RECURSIVE, "/", told.append)), 0, None)
    feed._has_had_watches = True
    reader = asyncio.create_task(feed.reached(4))
    await asyncio.sleep(0)
    feed._take_tree(api.WatchResponse(events=events_of(api, 4, "/a", "/b"), fragment=True))
    assert told == []
    feed._take_tree(api.WatchResponse(events=events_of(api, 4, "/c")))
    assert told == [WatchEvent(CREATED, path) for path in ("/a", "/b", "/c")]
    await reader
    assert feed.revision == 4
    progress = api.WatchResponse()
    progress.header.revision = 9
    feed._take_tree(progress)
    await feed.reached(9)


def test_events_that_were_written_down_take_the_place_of_the_keys() -> None:
    api = etcd_api()
    (event,) = events_of(api, 3, "/a")
    (record,) = events_of(api, 3, "/")
    record.kv.key = KEYS.events
    record.kv.value = encode_events(KEYS.events, [WatchEvent(DELETED, "/a"), WatchEvent(CREATED, "/a")])
    (change,) = changes_in(KEYS, [event, record], KEYS.session(1))
    assert change.events == [WatchEvent(DELETED, "/a"), WatchEvent(CREATED, "/a")]
    assert [path for path, _ in change.nodes] == ["/a"]
    record.kv.value = record.kv.value[:-1]
    with pytest.raises(RecordError):
        list(changes_in(KEYS, [record], KEYS.session(1)))


def test_the_end_of_our_session_is_seen_with_what_it_deleted() -> None:
    api = etcd_api()
    node, own = events_of(api, 3, "/e", "/")
    own.kv.key = KEYS.session(7)
    node.type = own.type = 1  # DELETE
    (ours,) = changes_in(KEYS, [node, own], KEYS.session(7))
    assert ours.is_session_over  # I13
    (theirs,) = changes_in(KEYS, [node, own], KEYS.session(8))
    assert not theirs.is_session_over
    assert theirs.events == [WatchEvent(DELETED, "/e")]


class FakeEtcd:
    """A stand-in for ``EtcdConnection`` that answers renewals as it is told."""

    def __init__(self) -> None:
        self.answers: Iterator[int | None] = itertools.repeat(5)
        self.renewals: list[str] = []

    def __call__(self, address: EtcdAddress, endpoint: str) -> Any:
        fake = self

        class Endpoint:
            def renew_blocking(self, lease_id: int, seconds: float) -> int:
                fake.renewals.append(endpoint)
                answer = next(fake.answers)
                if answer is None:
                    raise ConnectionLossError("away")
                return answer

            def close(self) -> None:
                pass

        return Endpoint()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEtcd:
    fake = FakeEtcd()
    monkeypatch.setattr("heliograph.metadata.backends.etcd.lease_keeper.EtcdConnection", fake)
    return fake


def keeper(on_over: Callable[[], None] = lambda: None) -> LeaseKeeper:
    return LeaseKeeper(EtcdAddress(("one:1", "two:2")), 0, 7, 0.06, lambda _: None, on_over)


def test_a_lease_is_renewed_at_another_endpoint_when_one_fails(fake: FakeEtcd) -> None:
    fake.answers = itertools.chain([5, None], itertools.repeat(5))
    kept = keeper()
    block_until(lambda: len(fake.renewals) > 5)
    kept.stop()
    assert fake.renewals[:4] == ["one:1", "one:1", "two:2", "two:2"]


def test_a_lease_that_is_over_is_told_once(fake: FakeEtcd) -> None:
    fake.answers = iter([5, 0])
    told: list[int] = []
    keeper(lambda: told.append(1))
    block_until(lambda: told)
    assert len(fake.renewals) == 2


def test_a_dead_event_loop_does_not_keep_its_session(fake: FakeEtcd) -> None:  # I13
    kept = keeper()
    block_until(lambda: fake.renewals)
    kept.loop_alive_at = now() - 100
    block_until(lambda: is_still(fake.renewals))
    kept.loop_alive_at = now()
    silent = len(fake.renewals)
    block_until(lambda: len(fake.renewals) > silent)
    kept.stop()


def is_still(growing: list[str]) -> bool:
    before = len(growing)
    time.sleep(0.2)
    return len(growing) == before

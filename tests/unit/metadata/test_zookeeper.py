"""The parts of the ZooKeeper backend that need no ZooKeeper: addresses, errors, the watch table."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from kazoo import exceptions as kazoo

from heliograph.base.errors import HeliographError, InvalidConfigError, NotPermittedError, UnsupportedError
from heliograph.metadata.backends.zookeeper import requests
from heliograph.metadata.backends.zookeeper.address import ZooKeeperAddress, parse_address
from heliograph.metadata.backends.zookeeper.client import ZooKeeperStore
from heliograph.metadata.backends.zookeeper.session import ZooKeeperWatches
from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import (
    BadVersionError,
    ConnectionLossError,
    InvalidPathError,
    MetadataError,
    NoNodeError,
    SessionExpiredError,
)
from heliograph.metadata.session.standing_watches import StandingWatch
from heliograph.metadata.session.watches import WatchKind, missed_event
from heliograph.metadata.store import Check, Create, EventType, Operation, Set, Stat, WatchEvent


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("zk://h", ZooKeeperAddress((("h", 2181),), "", None)),
        ("zk://h:1,i,[::1]:3/a/b", ZooKeeperAddress((("h", 1), ("i", 2181), ("::1", 3)), "/a/b", None)),
        ("zk://me:p%40ss%3A@h:1/", ZooKeeperAddress((("h", 1),), "", ("me", "p@ss:"))),
    ],
)
def test_addresses(url: str, expected: ZooKeeperAddress) -> None:
    assert parse_address(url) == expected


@pytest.mark.parametrize(
    "url",
    ["zk://", "zk:///a", "zk://h:x", "zk://h:", "zk://h:0", "zk://h:99999", "zk://h,", "zk://,h", "zk://me@h",
     "zk://:pw@h", "zk://h?x=1", "zk://h#x", "etcd://h"],
)  # fmt: skip
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        parse_address(url)
    assert raised.value.field == "url"


def test_a_refused_address_does_not_show_the_password() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        parse_address("zk://me:secret@h:x/a")
    assert "secret" not in str(raised.value)


@pytest.mark.slow
async def test_unreachable_endpoints_are_listed_each_with_its_failure_in_time() -> None:
    with socket.socket() as refusing, socket.create_server(("127.0.0.1", 0)) as mute:
        refusing.bind(("127.0.0.1", 0))
        endpoints = [("127.0.0.1", one.getsockname()[1]) for one in (refusing, mute)]
        began = time.monotonic()
        with pytest.raises(ConnectionLossError) as raised:
            await ZooKeeperStore.connect([*endpoints, ("no.such.host.invalid", 2181)], connect_timeout_ms=1_500)
        assert time.monotonic() - began < 60
        assert f"127.0.0.1:{endpoints[0][1]}: Connection refused" in str(raised.value)
        assert f"127.0.0.1:{endpoints[1][1]}: it accepts connections but grants no session" in str(raised.value)
        assert "no.such.host.invalid:2181: the name cannot be resolved" in str(raised.value)


async def test_a_session_that_could_not_begin_ends_without_a_word_of_its_own() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionLossError):
            await ZooKeeperStore.connect([refusing.getsockname()], connect_timeout_ms=200)
    assert complaints == []


def test_a_chroot_that_is_no_path_is_refused_before_anything_is_done() -> None:
    with pytest.raises(InvalidPathError):
        asyncio.run(connect_store("zk://127.0.0.1:1/a//b"))


def test_errors_are_ours() -> None:
    cases: list[tuple[Exception, type[HeliographError]]] = [
        (kazoo.NoNodeError(), NoNodeError),
        (kazoo.ConnectionClosedError(), ConnectionLossError),
        (kazoo.SessionExpiredError(), SessionExpiredError),
        (kazoo.SessionMovedError(), ConnectionLossError),
        (kazoo.NoAuthError(), NotPermittedError),
        (kazoo.UnimplementedError(), UnsupportedError),
        (kazoo.DataInconsistency(), MetadataError),
    ]
    for theirs, ours in cases:
        assert type(requests.translated(theirs, "/a")) is ours


def test_a_transaction_fails_with_the_error_of_the_operation_that_caused_it() -> None:
    operations: list[Operation] = [Create("/a"), Set("/b", b"", 3), Check("/c")]
    with pytest.raises(BadVersionError) as raised:
        requests.results_of(
            operations, [kazoo.RolledBackError(), kazoo.BadVersionError(), kazoo.RuntimeInconsistency()]
        )
    assert raised.value.operation_index == 1
    assert "/b" in str(raised.value)


def told(watches: ZooKeeperWatches, kind: EventType, path: str) -> list[tuple[WatchKind, EventType, str]]:
    told = watches.recipients(WatchEvent(kind, path))
    for watch, event in told:
        watches.deliver(watch, event)
    return [(watch.kind, event.type, event.path) for watch, event in told]


def add(watches: ZooKeeperWatches, kind: WatchKind, path: str, stat: Stat | None) -> StandingWatch:
    watch = watches.add(StandingWatch(kind, path, lambda _: None))
    watch.arm(stat)
    return watch


def test_one_shots_on_the_path_of_a_recursive_watch_live_off_its_events() -> None:
    watches = ZooKeeperWatches()
    stat = Stat(1, 1, 0, 0, 0, 0, 0)
    watches.expect_recursive("/p")
    recursive = add(watches, WatchKind.RECURSIVE, "/p", None)
    add(watches, WatchKind.CHILD, "/p", stat)
    add(watches, WatchKind.DATA, "/p", stat)
    assert len(watches) == 3
    assert told(watches, EventType.CREATED, "/p/a") == [
        (WatchKind.RECURSIVE, EventType.CREATED, "/p/a"),
        (WatchKind.CHILD, EventType.CHILD, "/p"),
    ]
    assert told(watches, EventType.CHANGED, "/p") == [
        (WatchKind.DATA, EventType.CHANGED, "/p"),
        (WatchKind.RECURSIVE, EventType.CHANGED, "/p"),
    ]
    add(watches, WatchKind.CHILD, "/p", stat)
    assert told(watches, EventType.CREATED, "/p/a/deeper") == [(WatchKind.RECURSIVE, EventType.CREATED, "/p/a/deeper")]
    assert watches.remove(recursive)
    assert not watches.remove(recursive)
    assert watches.forget_recursive("/p")
    assert told(watches, EventType.DELETED, "/p/a") == []
    assert [watch.kind for watch in watches] == [WatchKind.CHILD]


def test_what_a_one_shot_has_missed() -> None:
    before, same = Stat(5, 7, 0, 0, 0, 0, 0, pzxid=6), Stat(5, 7, 0, 0, 0, 0, 0, pzxid=6)
    data, child = WatchKind.DATA, WatchKind.CHILD
    assert missed_event(data, same, before.czxid, before.mzxid) is None
    assert missed_event(data, Stat(5, 9, 1, 0, 0, 0, 0), 5, 7) is EventType.CHANGED
    assert missed_event(data, Stat(8, 8, 0, 0, 0, 0, 0), 5, 7) is EventType.DELETED
    assert missed_event(data, None, 5, 7) is EventType.DELETED
    assert missed_event(data, None, -1, -1) is None
    assert missed_event(data, same, -1, -1) is EventType.CREATED
    assert missed_event(child, same, 5, 6) is None
    assert missed_event(child, Stat(5, 7, 0, 0, 0, 0, 0, pzxid=9), 5, 6) is EventType.CHILD
    assert missed_event(WatchKind.RECURSIVE, None, -1, -1) is None


def test_a_password_that_the_url_leaves_out_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_METADATA_PASSWORD", "a b:c")
    assert parse_address("zk://me@h:1").credentials == ("me", "a b:c")
    assert parse_address("zk://h:1").credentials is None

"""Stock clients at the endpoint: kazoo over TCP, ZooKeeper's Java shell, and ``helio metadata serve`` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import InvalidACLError, NoAuthError, NoNodeError, ReconfigDisabledError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from heliograph.base.errors import ResourceError
from heliograph.metadata.connect import connect_store
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.session.sessions import OpenStore
from heliograph.metadata.paths import ENDPOINT_ACLS, endpoint_acl
from heliograph.metadata.store import MetadataStore
from tests.contracts.endpoint.served_stores import STORES, LoopOnThread
from tests.contracts.endpoint.zookeeper_shell import ZooKeeperShell
from tests.contracts.metadata.backends import EmbeddedBackend
from tests.contracts.metadata.zookeeper_server import missing

DEADLINE_SECONDS = 60
SESSION_SECONDS = 40.0  # survives whatever a busy machine does to it
JAVA = pytest.mark.skipif(bool(missing()), reason=missing() or "never")


class Served:
    """An endpoint on a loop beside the test."""

    def __init__(self, loop: LoopOnThread, url: str) -> None:
        self.loop = loop
        self.url = url
        self.endpoint: ZooKeeperEndpoint
        self.address = ""

    async def start(self) -> None:
        self.endpoint = ZooKeeperEndpoint(opener(self.url))
        await self.endpoint.start()
        self.address = await self.endpoint.listen("127.0.0.1", 0)

    async def cut_connections(self) -> None:
        """Break every connection; the sessions continue."""
        self.endpoint._abort_connections()

    def past_the_endpoint(self, use: Callable[[Any], Any]) -> Any:
        """Use the store itself, as a program without the endpoint."""

        async def whole() -> Any:
            store = await connect_store(self.url)
            try:
                return await use(store)
            finally:
                await store.close()

        return self.loop.run(whole())


@contextmanager
def serving(name: str, directory: Path) -> Iterator[Served]:
    with STORES[name](directory) as url, LoopOnThread() as loop:
        served = Served(loop, url)
        loop.run(served.start())
        try:
            yield served
        finally:
            loop.run(served.endpoint.stop())


@pytest.fixture(params=sorted(STORES))
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with serving(request.param, tmp_path) as found:
        yield found


@contextmanager
def kazoo(address: str, **options: Any) -> Iterator[Any]:
    client = KazooClient(address, **{"timeout": SESSION_SECONDS, **options})
    client.start(timeout=DEADLINE_SECONDS)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_kazoo_comes_back_to_its_session_after_a_broken_connection(served: Served) -> None:
    with kazoo(served.address) as one, kazoo(served.address) as other:
        states: list[str] = []
        again = threading.Event()

        def listen(state: str) -> None:
            states.append(state)
            if state == KazooState.CONNECTED:
                again.set()

        one.add_listener(listen)
        one.create("/e", b"v", ephemeral=True)
        session = one.client_id
        served.loop.run(served.cut_connections())
        assert again.wait(DEADLINE_SECONDS)
        assert states == [KazooState.SUSPENDED, KazooState.CONNECTED]
        assert one.client_id == session
        assert one.retry(other.get, "/e")[1].ephemeralOwner == session[0]


def test_acls_are_kept_beside_the_nodes_and_hold_at_the_endpoint(served: Served) -> None:
    mine = [make_digest_acl("user", "secret", all=True)]
    with kazoo(served.address, auth_data=[("digest", "user:secret")]) as owner, kazoo(served.address) as stranger:
        owner.create("/mine", b"v", acl=mine)
        sequential = owner.create("/mine/n-", b"v", acl=mine, sequence=True)
        owner.create("/later", b"v")
        owner.set_acls("/later", mine)
        for path in ("/mine", sequential, "/later"):
            assert owner.get(path)[0] == b"v"
            assert owner.get_acls(path)[0] == mine
            for refused in (stranger.get, stranger.exists, stranger.get_children, stranger.get_acls, stranger.set_acls):
                arguments = (path, OPEN_ACL_UNSAFE) if refused == stranger.set_acls else (path,)
                with pytest.raises(NoAuthError):
                    refused(*arguments)
        with pytest.raises(NoAuthError):
            stranger.delete(sequential)
        with pytest.raises(InvalidACLError):
            stranger.create("/other", acl=[make_acl("ip", "127.0.0.1", read=True)])
        # The node of the ACL records is hidden from names and counts.
        assert stranger.get_children("/", include_data=True)[1].numChildren == 3
        assert sorted(stranger.get_children("/")) == ["later", "mine", "zookeeper"]
        for hidden in (ENDPOINT_ACLS, endpoint_acl("/mine")):
            with pytest.raises(NoAuthError):
                stranger.get(hidden)
            with pytest.raises(NoAuthError):
                stranger.exists(hidden)

        async def replace(store: Any) -> None:
            await store.delete("/later")
            await store.create("/later", b"new")

        served.past_the_endpoint(replace)
        assert stranger.get("/later")[0] == b"new"  # another node, without an ACL
        owner.delete("/mine", recursive=True)
        assert served.past_the_endpoint(lambda store: store.children(ENDPOINT_ACLS)) == ["%2Flater"]
        owner.create("/later/mine", acl=mine)
        assert owner.exists("/later").acl_version == 0


def test_acls_go_with_their_nodes_however_those_go(served: Served) -> None:
    mine = [make_digest_acl("user", "secret", all=True)]
    later = Served(served.loop, served.url)

    def kept() -> list[str]:
        names: list[str] = served.past_the_endpoint(lambda store: store.children(ENDPOINT_ACLS))
        return names

    with kazoo(served.address, auth_data=[("digest", "user:secret")]) as owner:
        owner.create("/e", acl=mine, ephemeral=True)
        owner.create("/n-", acl=mine, ephemeral=True, sequence=True)
        owner.create("/f", ephemeral=True)
        owner.set_acls("/f", mine)
        owner.create("/stays", acl=mine)
        owner.create("/goes", acl=mine)
        assert len(kept()) == 5
    assert kept() == ["%2Fgoes", "%2Fstays"]
    served.past_the_endpoint(lambda store: store.delete("/goes"))
    served.loop.run(later.start())
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while kept() != ["%2Fstays"]:
            assert time.monotonic() < deadline
    finally:
        served.loop.run(later.endpoint.stop())


def test_acls_hold_at_another_endpoint_and_after_a_restart(served: Served) -> None:
    mine = [make_digest_acl("user", "secret", all=True)]
    second = Served(served.loop, served.url)
    with kazoo(served.address, auth_data=[("digest", "user:secret")]) as owner:
        owner.create("/before", acl=mine)
        served.loop.run(second.start())
        try:
            with kazoo(second.address) as stranger:
                owner.create("/after", acl=mine)
                for path in ("/before", "/after"):
                    _eventually_refused(stranger, path)
        finally:
            served.loop.run(second.endpoint.stop())


def _eventually_refused(client: Any, path: str) -> None:
    for _ in range(1_000):
        try:
            client.get(path)
        except NoAuthError:
            return
        client.sync(path)
    pytest.fail(f"{path} is open")


def test_kazoo_is_told_what_is_not_offered(served: Served) -> None:
    with kazoo(served.address) as client:
        with pytest.raises(ReconfigDisabledError):
            client.reconfig(joining=None, leaving="1", new_members=None)
        assert client.command(b"ruok") == "imok"
        with pytest.raises(NoNodeError):
            client.get("/none")


@JAVA
def test_the_java_shell_looks_inside_and_comes_back(tmp_path: Path) -> None:
    with (
        serving("embedded", tmp_path) as served,
        kazoo(served.address) as other,
        ZooKeeperShell(served.address) as shell,
    ):
        shell.say("create /a hello", "Created /a")
        shell.say("create -e -s /a/n- x", "Created /a/n-0000000000")
        shell.say("ls /", "[a, zookeeper]")
        shell.say("get -s /a", "hello")
        shell.expect("dataVersion = 0")
        shell.say("stat /a", "numChildren = 1")
        shell.say("create -c /container", "Created /container")
        shell.say("addauth digest u:p")
        shell.say("create /secret v auth::cdrwa", "Created /secret")
        shell.say("getAcl /secret", "'digest,'u:")
        shell.say("getEphemerals", "[/a/n-0000000000]")
        shell.say("getAllChildrenNumber /", "7")  # with the three of /zookeeper
        shell.say("whoami", "digest: u")
        shell.say("sync /a", "Sync is OK")
        shell.say("addWatch -m PERSISTENT_RECURSIVE /a")
        shell.say("get -w /secret", "v")
        other.set("/a", b"new")
        shell.expect("type:NodeDataChanged path:/a")
        other.create("/a/below")
        shell.expect("type:NodeCreated path:/a/below")
        served.loop.run(served.cut_connections())
        shell.expect("state:Disconnected")
        shell.expect("state:SyncConnected")
        shell.say("get -w /secret", "v")  # its session, its credentials and its watches are restored
        other.retry(other.set, "/a/below", b"v")
        shell.expect("type:NodeDataChanged path:/a/below")
        shell.say("set /secret w", "type:NodeDataChanged path:/secret")
        shell.say("removewatches /a", "PersistentWatchRemoved path:/a")
        shell.say("deleteall /a")
        shell.say("ls /", "[container, secret, zookeeper]")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path, number: signal.Signals) -> None:
    with STORES["embedded"](tmp_path) as url, LoopOnThread() as loop:
        process, address = _command(url)
        with kazoo(address) as client:
            client.create("/e", ephemeral=True)
            process.send_signal(number)
            assert process.wait(DEADLINE_SECONDS) == 0
            assert loop.run(_names(url)) == ["e", "zookeeper"]  # the session stands: another endpoint may serve it
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("store", ["embedded", pytest.param("etcd", marks=pytest.mark.full)])
def test_kazoo_rides_over_the_death_of_one_of_two_endpoints(tmp_path: Path, store: str) -> None:
    with STORES[store](tmp_path) as url:
        processes = [_command(url) for _ in range(2)]
        hosts = ",".join(address for _, address in processes)
        with kazoo(
            hosts, timeout=6, randomize_hosts=False, connection_retry={"max_tries": -1, "max_delay": 0.1}
        ) as client:
            states: list[str] = []
            again, changed = threading.Event(), threading.Event()

            def listen(state: str) -> None:
                states.append(state)
                if state == KazooState.CONNECTED:
                    again.set()

            client.create("/e", ephemeral=True)
            client.create("/watched")
            client.get("/watched", watch=lambda _: changed.set())
            session = client.client_id
            client.add_listener(listen)
            processes[0][0].kill()
            assert again.wait(DEADLINE_SECONDS)
            assert states == [KazooState.SUSPENDED, KazooState.CONNECTED]
            assert client.client_id == session
            client.set("/watched", b"new")
            assert changed.wait(DEADLINE_SECONDS)
            time.sleep(8)  # longer than the session of a dead endpoint could last
            assert client.exists("/e").ephemeralOwner == session[0]
        for process, _ in processes:
            process.kill()
            process.wait(DEADLINE_SECONDS)
            assert process.stdout is not None
            process.stdout.close()


def test_a_killed_endpoint_leaves_its_sessions_to_the_store(tmp_path: Path) -> None:
    """The store's session lasts twice as long as the client's, so that its nodes are not deleted too early."""
    with STORES["embedded"](tmp_path) as url, LoopOnThread() as loop:
        process, address = _command(url)
        with kazoo(address, timeout=4) as client:
            client.create("/e", ephemeral=True)
            process.kill()
            process.wait(DEADLINE_SECONDS)
            assert loop.run(_names(url)) == ["e", "zookeeper"]
        assert process.stdout is not None
        process.stdout.close()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while loop.run(_names(url)) != ["zookeeper"]:
            assert time.monotonic() < deadline


def test_a_restarted_store_cuts_clients_off_and_they_come_back_to_their_sessions(tmp_path: Path) -> None:
    backend = EmbeddedBackend(tmp_path)
    with LoopOnThread() as loop:
        loop.run(backend.start())
        served = Served(loop, f"embedded://{backend.server.address}")
        loop.run(served.start())
        with kazoo(served.address, timeout=20, connection_retry={"max_tries": -1, "max_delay": 0.1}) as client:
            states: list[str] = []
            again = threading.Event()

            def listen(state: str) -> None:
                states.append(state)
                if len(states) > 1:
                    again.set()

            client.add_listener(listen)
            client.create("/e", ephemeral=True)
            session = client.client_id
            loop.run(backend.restart())
            assert again.wait(DEADLINE_SECONDS)
            assert states[:2] == [KazooState.SUSPENDED, KazooState.CONNECTED]
            assert client.client_id == session
            assert client.retry(client.exists, "/e").ephemeralOwner == session[0]
        loop.run(served.endpoint.stop())
        loop.run(backend.stop())


def opener(url: str) -> OpenStore:
    """Return the way of an endpoint to a store."""

    async def open_store(timeout_ms: int, token: str | None) -> MetadataStore:
        return await connect_store(url, session_timeout_ms=timeout_ms, token=token)

    return open_store


def _command(url: str) -> tuple[subprocess.Popen[str], str]:
    """Run ``helio metadata serve`` as a process and yield it with its address."""
    program = "from heliograph.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "metadata", "serve", "--url", url, "--zk-port", "0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    address = process.stdout.readline().partition("protocol at ")[2].partition(". ")[0]
    assert address.startswith("127.0.0.1:")
    return process, address


async def _names(url: str) -> list[str]:
    store = await connect_store(url)
    try:
        return await store.children("/")
    finally:
        await store.close()


def test_a_port_that_is_taken_is_named(served: Served) -> None:
    second = ZooKeeperEndpoint(opener(served.url))

    async def whole() -> None:
        await second.start()
        try:
            with pytest.raises(ResourceError, match=served.address.rpartition(":")[2]):
                await second.listen("127.0.0.1", int(served.address.rpartition(":")[2]))
        finally:
            await second.stop()

    served.loop.run(whole())

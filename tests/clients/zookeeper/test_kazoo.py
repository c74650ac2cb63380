"""kazoo, the Python client: its recipes, each with contending clients, and a session that goes on at another endpoint.

The recipes over every store, on the endpoint of a process of their own, are contract tests:
``tests/contracts/endpoint/test_kazoo_recipes.py``. These here run on ``helio metadata serve``.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import kazoo
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError, NoAuthError, SessionClosedRequireSaslError
from kazoo.recipe.cache import TreeCache
from kazoo.security import make_acl

from heliograph.auth.issuing import new_token
from tests.clients.support.report import ClientMatrix
from tests.clients.zookeeper.served import STORE_PARAMETERS, Endpoint, endpoints, serving
from tests.waits import block_until

CLIENT = "kazoo"
WAIT_SECONDS = 60.0
SESSION_SECONDS = 40.0  # survives whatever a busy machine does to it
New = Callable[[], KazooClient]


def together(*works: Callable[[], object]) -> None:
    """Run works at the same time and wait for all; the first failure fails the test."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # it is raised in the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "a work does not end"
    if failures:
        raise failures[0]


def nodes(new: New, path: str) -> None:
    client = new()
    client.create(path, b"1")
    assert client.create(f"{path}/n-", b"", ephemeral=True, sequence=True) == f"{path}/n-0000000000"
    assert client.set(path, b"2").version == 1
    other = new()
    assert other.get(path)[0] == b"2"
    client.stop()
    block_until(lambda: other.get_children(path) == [])
    with other.transaction() as transaction:
        transaction.check(path, 1)
        transaction.create(f"{path}/t", b"x")
    assert other.get_children(path) == ["t"]
    other.delete(path, recursive=True)
    assert other.exists(path) is None


def locks(new: New, path: str) -> None:
    holders: list[int] = []

    def work() -> None:
        lock = new().Lock(path)
        for _ in range(4):
            with lock:
                holders.append(1)
                assert sum(holders) == 1, "one holder at a time"
                holders.pop()

    together(work, work, work)
    first, second = new().Semaphore(f"{path}-s", max_leases=1), new().Semaphore(f"{path}-s", max_leases=1)
    assert first.acquire()
    assert not second.acquire(blocking=False)
    first.release()
    assert second.acquire(timeout=WAIT_SECONDS)


def leaders(new: New, path: str) -> None:
    led: list[int] = []

    def candidate(number: int) -> None:
        new().Election(path, str(number)).run(lambda: led.append(number))

    together(*(lambda number=number: candidate(number) for number in range(3)))
    assert sorted(led) == [0, 1, 2], "each leads once, when those before it have ended"


def barriers(new: New, path: str) -> None:
    gate = new().Barrier(path)
    gate.create()
    passed = threading.Event()

    def wait() -> None:
        assert new().Barrier(path).wait(WAIT_SECONDS)
        passed.set()

    def lift() -> None:
        time.sleep(0.3)
        assert not passed.is_set()
        gate.remove()

    together(wait, lift)
    inside: list[int] = []

    def member() -> None:
        barrier = new().DoubleBarrier(f"{path}-d", 2)
        barrier.enter()
        inside.append(1)
        barrier.leave()

    together(member, member)
    assert len(inside) == 2


def groups(new: New, path: str) -> None:
    one, other = new(), new()
    one.Party(path, "one").join()
    other.Party(path, "other").join()
    assert sorted(one.Party(path)) == ["one", "other"]
    other.stop()
    block_until(lambda: sorted(one.Party(path)) == ["one"])


def queues(new: New, path: str) -> None:
    producer, consumer = new(), new()
    queue = producer.LockingQueue(path)
    queue.put_all([b"a", b"b"])
    queue.put(b"first", priority=1)
    taken = []
    taking = consumer.LockingQueue(path)
    for _ in range(3):
        taken.append(taking.get(timeout=WAIT_SECONDS))
        assert taking.consume()
    assert taken == [b"first", b"a", b"b"]


def counters(new: New, path: str) -> None:
    def count() -> None:
        counter = new().Counter(path)
        for _ in range(5):
            counter += 1

    together(count, count)
    assert new().Counter(path).value == 10


def watches(new: New, path: str) -> None:
    writer, reader = new(), new()
    writer.create(path, b"0")
    values: list[bytes | None] = []
    names: list[list[str]] = []
    reader.DataWatch(path, lambda value, _: values.append(value))
    reader.ChildrenWatch(path, lambda found: names.append(sorted(found)))
    writer.set(path, b"1")
    writer.create(f"{path}/c")
    block_until(lambda: values[-1:] == [b"1"] and names[-1:] == [["c"]])
    cache = TreeCache(reader, path)
    cache.start()
    writer.create(f"{path}/c/d", b"deep")
    block_until(lambda: (found := cache.get_data(f"{path}/c/d")) is not None and found.data == b"deep")
    cache.close()


SCENARIOS: dict[str, Callable[[New, str], None]] = {
    "zk_nodes": nodes, "zk_locks": locks, "zk_leaders": leaders, "zk_barriers": barriers, "zk_groups": groups,
    "zk_queues": queues, "zk_counters": counters, "zk_watches": watches,
}  # fmt: skip


@contextmanager
def clients(address: str, **options: Any) -> Iterator[New]:
    """Yield what makes connected clients of an address; all are stopped at the end."""
    with ExitStack() as stack:

        def new() -> KazooClient:
            client = KazooClient(address, timeout=SESSION_SECONDS, **options)
            client.start(WAIT_SECONDS)
            stack.callback(client.close)
            stack.callback(client.stop)
            return client

        yield new


@pytest.fixture(scope="module", params=STORE_PARAMETERS)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(request.param, tmp_path_factory.mktemp("kazoo")) as found:
        yield found


@pytest.mark.parametrize("feature", SCENARIOS)
def test_recipe(feature: str, address: str, matrix: ClientMatrix) -> None:
    with matrix.noting(CLIENT, kazoo.__version__, feature), clients(address) as new:
        SCENARIOS[feature](new, f"/{feature}-{uuid.uuid4().hex[:8]}")


@pytest.mark.parametrize("store", STORE_PARAMETERS[:2])
def test_watches_and_ephemerals_outlive_an_endpoint(store: str, tmp_path: Path, matrix: ClientMatrix) -> None:
    with (
        matrix.noting(CLIENT, kazoo.__version__, "zk_endpoint_death"),
        endpoints(store, tmp_path, 2) as (first, second),
        clients(second.address) as witness,
    ):
        ride_over(first, second, witness())


def test_clients_show_tokens_of_the_cluster(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "cluster.toml").write_text("[auth]\nenabled = true\n")
    with (
        endpoints("embedded", tmp_path, options=["--home", str(home)]) as (endpoint,),
        ExitStack() as stack,
    ):
        key, admin = (home / "token-secret.key").read_bytes(), (home / "admin.token").read_text()

        def shows(token: str) -> KazooClient:
            return stack.enter_context(clients(endpoint.address, auth_data=[("token", token)]))()

        alice, bob = (shows(new_token(role, key, "HS256")) for role in ("alice", "bob"))
        alice.create("/mine", b"v", acl=[make_acl("token", "alice", all=True)])
        assert alice.get("/mine")[0] == b"v"
        with pytest.raises(NoAuthError):
            bob.get("/mine")
        assert shows(admin).get("/mine")[0] == b"v", "a superuser passes all ACLs"
        with pytest.raises(NoAuthError):
            alice.create("/ledgers")
        with clients(endpoint.address) as new, pytest.raises(SessionClosedRequireSaslError):
            new().get("/")
        forged = new_token("alice", bytes(32), "HS256")
        stranger = KazooClient(endpoint.address, auth_data=[("token", forged)])
        stack.callback(stranger.close)
        stack.callback(stranger.stop)
        stranger.start_async()
        # kazoo moves from AUTH_FAILED to CLOSED by itself; a call made after that has the second error.
        with pytest.raises((AuthFailedError, ConnectionClosedError)):
            stranger.get("/")
        with pytest.raises(AuthFailedError):
            bob.add_auth("token", forged)


def ride_over(first: Endpoint, second: Endpoint, witness: KazooClient) -> None:
    """Kill the endpoint that a client is at, and see its watches, its lock and its ephemeral at the other one."""
    with clients(first.address) as new:
        client = new()
        client.set_hosts(f"{first.address},{second.address}")
        client.create("/e", b"", ephemeral=True)
        client.create("/data", b"0")
        values: list[bytes | None] = []
        names: list[list[str]] = []
        client.DataWatch("/data", lambda value, _: values.append(value))
        client.ChildrenWatch("/data", lambda found: names.append(sorted(found)))
        lock = client.Lock("/lock")
        assert lock.acquire()
        session = client.client_id
        first.kill()
        witness.set("/data", b"1")
        witness.create("/data/c")
        block_until(lambda: values[-1:] == [b"1"] and names[-1:] == [["c"]])
        assert client.client_id == session
        assert witness.exists("/e").owner_session_id == session[0]
        assert not witness.Lock("/lock").acquire(blocking=False)
        lock.release()
        assert witness.Lock("/lock").acquire(timeout=WAIT_SECONDS)

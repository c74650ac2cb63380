"""kazoo's own recipes, unmodified, on our stores, each with contending clients."""

from __future__ import annotations

import datetime
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import CancelledError, NoNodeError, NotEmptyError
from kazoo.recipe.cache import TreeCache, TreeEvent
from kazoo.recipe.lease import MultiNonBlockingLease, NonBlockingLease

from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.endpoint.kazoo_client import StoreKazooClient
from tests.contracts.endpoint.served_stores import STORES
from tests.waits import block_until

DEADLINE_SECONDS = 60
New = Callable[[], Any]


@pytest.fixture(params=sorted(STORES))
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[New]:
    """A factory of clients of one empty store; they are stopped at the end."""
    with ExitStack() as stack:
        url = stack.enter_context(STORES[request.param](tmp_path))

        def make() -> Any:
            client = StoreKazooClient(url)
            client.start(timeout=DEADLINE_SECONDS)
            stack.callback(client.close)
            stack.callback(client.stop)
            return client

        yield make


def expire(client: Any) -> None:
    """End the client's session as if it had expired."""
    for session in client._private_endpoint._endpoint.sessions:
        if session.session_id == client.client_id[0]:
            session.deadline_ms = 0


class Together:
    """Threads whose failures fail the test."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        thread = threading.Thread(target=self._run, args=(function, *arguments), daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive(), "a thread never ended"
        assert not self._failures, self._failures

    def _run(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            self._failures.append(error)


def test_the_clients_calls(new: New) -> None:
    one, other = new(), new()
    assert one.connected
    assert one.state == KazooState.CONNECTED
    assert one.ensure_path("/app/config/deep")
    assert one.create("/app/n-", b"v", sequence=True, ephemeral=True) == "/app/n-0000000001"
    assert one.create("/x/y/z", b"v", makepath=True, include_data=True)[1].dataLength == 1
    value, stat = other.get("/app/n-0000000001")
    assert (value, stat.ephemeralOwner) == (b"v", one.client_id[0])
    assert other.set("/x/y/z", b"w", version=0).version == 1
    assert sorted(other.get_children("/")) == ["app", "x", "zookeeper"]
    assert one.get_async("/x/y/z").get(timeout=DEADLINE_SECONDS)[0] == b"w"
    assert one.sync("/x") == "/x"
    with pytest.raises(NotEmptyError):
        one.delete("/x")
    with one.transaction() as transaction:
        transaction.create("/t", b"1")
        transaction.check("/x/y/z", 1)
        transaction.delete("/x/y/z")
    one.delete("/x", recursive=True)
    assert one.exists("/x") is None
    failed = one.transaction()
    failed.create("/u")
    failed.check("/none", 1)
    assert [type(result).__name__ for result in failed.commit()] == ["RolledBackError", "NoNodeError"]
    assert one.retry(other.exists, "/u") is None
    assert one.command(b"ruok") == "imok"
    assert one.server_version() == (3, 9, 3)


def test_a_lost_session_is_told_and_takes_its_nodes_and_the_client_goes_on_with_a_new_one(new: New) -> None:
    one, other = new(), new()
    states: list[str] = []
    one.add_listener(states.append)
    one.create("/e", ephemeral=True)
    gone = threading.Event()
    assert other.exists("/e", watch=lambda _: gone.set())
    old_id = one.client_id[0]
    expire(one)
    assert gone.wait(DEADLINE_SECONDS)
    block_until(lambda: states[-1:] == [KazooState.CONNECTED])
    assert states == [KazooState.SUSPENDED, KazooState.LOST, KazooState.CONNECTED]
    assert one.client_id[0] != old_id
    one.create("/again", ephemeral=True)


def test_a_client_that_is_stopped_can_be_started_again(new: New) -> None:
    one, other = new(), new()
    one.create("/e", ephemeral=True)
    one.stop()
    assert other.exists("/e") is None
    one.start()
    one.create("/e", ephemeral=True)
    one.restart()
    assert one.exists("/e") is None


def test_a_url_that_names_no_store_is_refused() -> None:
    for _ in range(2):
        with pytest.raises(InvalidConfigError):
            StoreKazooClient("nothing://here").start()


def test_lock(new: New) -> None:
    clients = [new() for _ in range(3)]
    inside, entered = Counter[str](), 0
    together = Together()

    def work(client: Any, name: str) -> None:
        nonlocal entered
        for _ in range(5):
            with client.Lock("/lock", name):
                inside["now"] += 1
                assert inside["now"] == 1
                entered += 1
                inside["now"] -= 1

    for number, client in enumerate(clients):
        together.start(work, client, f"worker-{number}")
    together.join()
    assert entered == 15


def test_lock_is_free_when_its_holders_session_ends_and_a_waiter_can_be_cancelled(new: New) -> None:
    one, other, third = new(), new(), new()
    held, wanted = one.Lock("/lock", "one"), other.Lock("/lock", "other")
    assert held.acquire()
    assert not wanted.acquire(blocking=False)
    assert held.contenders() == ["one"]
    given_up = third.Lock("/lock", "third")
    together = Together()

    def give_up() -> None:
        with pytest.raises(CancelledError):
            given_up.acquire()

    together.start(give_up)
    block_until(lambda: held.contenders() == ["one", "third"])
    given_up.cancel()
    together.join()
    together.start(wanted.acquire)
    block_until(lambda: held.contenders() == ["one", "other"])
    one.stop()
    together.join()
    assert wanted.is_acquired
    wanted.release()


def test_read_and_write_locks(new: New) -> None:
    one, other, third = new(), new(), new()
    readers = one.ReadLock("/rw", "r1"), other.ReadLock("/rw", "r2")
    writer = third.WriteLock("/rw", "w")
    assert all(reader.acquire(timeout=DEADLINE_SECONDS) for reader in readers)
    assert not writer.acquire(blocking=False)
    together = Together()
    together.start(writer.acquire)
    block_until(lambda: "w" in writer.contenders())
    late = one.ReadLock("/rw", "r3")
    assert not late.acquire(blocking=False)
    for reader in readers:
        assert not writer.is_acquired
        reader.release()
    together.join()
    assert writer.is_acquired
    writer.release()
    assert late.acquire(timeout=DEADLINE_SECONDS)


def test_semaphore(new: New) -> None:
    clients = [new() for _ in range(3)]
    now, most = Counter[str](), 0
    guard, together = threading.Lock(), Together()

    def work(client: Any, name: str) -> None:
        nonlocal most
        for _ in range(4):
            with client.Semaphore("/semaphore", name, max_leases=2):
                with guard:
                    now["inside"] += 1
                    most = max(most, now["inside"])
                with guard:
                    now["inside"] -= 1

    for number, client in enumerate(clients):
        together.start(work, client, str(number))
    together.join()
    assert most <= 2
    holders = [client.Semaphore("/semaphore", "x", max_leases=2) for client in clients]
    assert [holder.acquire(blocking=False) for holder in holders] == [True, True, False]


def test_election(new: New) -> None:
    clients = [new() for _ in range(3)]
    led: list[int] = []
    go_on = [threading.Event() for _ in clients]
    together = Together()

    def lead(number: int) -> None:
        led.append(number)
        go_on[number].wait(DEADLINE_SECONDS)

    elections = [client.Election("/election", str(number)) for number, client in enumerate(clients)]
    for number, election in enumerate(elections):
        together.start(election.run, lead, number)
        block_until(lambda: len(elections[0].contenders()) == number + 1)  # noqa: B023 - awaited here
    block_until(lambda: led == [0])
    go_on[0].set()
    block_until(lambda: led == [0, 1])
    expire(clients[1])
    block_until(lambda: led == [0, 1, 2])
    for event in go_on:
        event.set()
    together.join()


@pytest.mark.parametrize("kind", ["Party", "ShallowParty"])
def test_parties(new: New, kind: str) -> None:
    clients = [new() for _ in range(3)]
    parties = [getattr(client, kind)("/party", f"member-{number}") for number, client in enumerate(clients)]
    for party in parties:
        party.join()
    assert sorted(parties[0]) == ["member-0", "member-1", "member-2"]
    clients[1].stop()
    assert sorted(parties[0]) == ["member-0", "member-2"]
    parties[2].leave()
    assert len(parties[0]) == 1


def test_barrier(new: New) -> None:
    one, other = new(), new()
    one.Barrier("/barrier").create()
    assert not other.Barrier("/barrier").wait(timeout=0.05)
    passed: list[bool] = []
    together = Together()
    together.start(lambda: passed.append(other.Barrier("/barrier").wait(timeout=DEADLINE_SECONDS)))
    one.Barrier("/barrier").remove()
    together.join()
    assert passed == [True]


def test_double_barrier(new: New) -> None:
    clients = [new() for _ in range(3)]
    entered, left = [], []
    together = Together()

    def take_part(client: Any, number: int) -> None:
        barrier = client.DoubleBarrier("/double", 3, str(number))
        barrier.enter()
        entered.append(number)
        block_until(lambda: len(entered) == 3)
        barrier.leave()
        left.append(number)

    together.start(take_part, clients[0], 0)
    together.start(take_part, clients[1], 1)
    block_until(lambda: clients[2].exists("/double") and len(clients[2].get_children("/double")) == 2)
    assert entered == []
    together.start(take_part, clients[2], 2)
    together.join()
    assert sorted(left) == [0, 1, 2]


def test_counter(new: New) -> None:
    clients = [new() for _ in range(3)]
    together = Together()

    def count(client: Any) -> None:
        counter = client.Counter("/counter")
        for _ in range(5):
            counter += 1

    for client in clients:
        together.start(count, client)
    together.join()
    assert clients[0].Counter("/counter").value == 15


def test_queue(new: New) -> None:
    clients = [new() for _ in range(3)]
    taken: list[bytes] = []
    together = Together()
    queue = clients[0].Queue("/queue")
    for number in range(12):
        queue.put(b"%d" % number, priority=10 if number == 7 else 100)
    assert queue.get() == b"7"

    def drain(client: Any) -> None:
        while (item := client.Queue("/queue").get()) is not None:
            taken.append(item)

    for client in clients:
        together.start(drain, client)
    together.join()
    assert sorted(map(int, taken)) == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]


def test_locking_queue(new: New) -> None:
    one, other = new(), new()
    queue, rival = one.LockingQueue("/queue"), other.LockingQueue("/queue")
    queue.put_all([b"first", b"second"])
    assert queue.get(timeout=DEADLINE_SECONDS) == b"first"
    assert queue.holds_lock()
    assert rival.get(timeout=DEADLINE_SECONDS) == b"second"
    assert rival.consume()
    assert queue.release()  # another client gets the entry
    assert rival.get(timeout=DEADLINE_SECONDS) == b"first"
    assert rival.consume()
    assert queue.get(timeout=0.05) is None


def test_data_watch(new: New) -> None:
    one, other = new(), new()
    seen: list[bytes | None] = []
    one.DataWatch("/watched", lambda value, stat: seen.append(value))
    for value in (b"a", b"b"):
        other.ensure_path("/watched")
        other.set("/watched", value)
        block_until(lambda: seen[-1] == value)  # noqa: B023 - awaited here
    other.delete("/watched")
    block_until(lambda: seen[-1] is None)
    assert seen[0] is None


def test_children_watch(new: New) -> None:
    one, other = new(), new()
    one.ensure_path("/family")
    seen: list[list[str]] = []
    one.ChildrenWatch("/family", lambda names: seen.append(sorted(names)))
    for name in ("a", "b"):
        other.create(f"/family/{name}")
    block_until(lambda: seen[-1] == ["a", "b"])
    other.delete("/family/a")
    block_until(lambda: seen[-1] == ["b"])


def test_set_partitioner(new: New) -> None:
    one, other = new(), new()
    members = set(range(6))
    first = one.SetPartitioner("/partition", set=members, time_boundary=0.05, identifier="one")
    first.wait_for_acquire(DEADLINE_SECONDS)
    assert set(first) == members
    second = other.SetPartitioner("/partition", set=members, time_boundary=0.05, identifier="other")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (first.acquired and second.acquired and len(list(first)) == len(list(second)) == 3):
        assert time.monotonic() < deadline
        for partitioner in (first, second):
            if partitioner.release:
                partitioner.release_set()
            elif partitioner.allocating:
                partitioner.wait_for_acquire(0.05)
        time.sleep(0.01)
    assert set(first) | set(second) == members
    second.finish()
    first.finish()


def test_tree_cache(new: New) -> None:
    one, other = new(), new()
    other.create("/tree/a", b"v", makepath=True)
    kinds: list[int] = []
    cache = TreeCache(one, "/tree")
    cache.listen(lambda event: kinds.append(event.event_type))
    cache.start()
    block_until(lambda: TreeEvent.INITIALIZED in kinds)
    assert cache.get_data("/tree/a").data == b"v"
    other.create("/tree/a/b", b"w")
    other.set("/tree/a", b"x")
    block_until(lambda: cache.get_children("/tree/a") == frozenset({"b"}) and cache.get_data("/tree/a").data == b"x")
    other.delete("/tree/a", recursive=True)
    block_until(lambda: cache.get_data("/tree/a") is None)
    cache.close()


def test_leases(new: New) -> None:
    one, other, third = new(), new(), new()
    hour = datetime.timedelta(hours=1)
    assert NonBlockingLease(one, "/lease", hour, identifier="one")
    assert not NonBlockingLease(other, "/lease", hour, identifier="other")
    assert NonBlockingLease(one, "/lease", hour, identifier="one")
    leases = [
        MultiNonBlockingLease(client, 2, "/leases", hour, identifier=str(number))
        for number, client in enumerate((one, other, third))
    ]
    assert [bool(lease) for lease in leases] == [True, True, False]


def test_watch_callbacks_run_in_order_on_the_handlers_thread(new: New) -> None:
    one, other = new(), new()
    threads: set[str] = set()
    seen: list[bytes] = []
    done = threading.Event()

    def on_change(event: Any) -> None:
        threads.add(threading.current_thread().name)
        value = one.get("/a", watch=on_change)[0]
        seen.append(value)
        if value == b"19":
            done.set()

    other.create("/a")
    one.get("/a", watch=on_change)
    for number in range(20):
        other.set("/a", b"%d" % number)
    assert done.wait(DEADLINE_SECONDS)
    assert list(map(int, seen)) == sorted(set(map(int, seen)))
    assert len(threads) == 1
    with pytest.raises(NoNodeError):
        one.get("/none")

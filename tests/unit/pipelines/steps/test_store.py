"""A store of steps on a cluster in this process: many writers, random reads, and steps that go with their ledgers."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import heliograph
from heliograph.base.errors import (
    BadRequestError,
    MessageTooLargeError,
    RunningLoopError,
    StepDroppedError,
    UnsupportedError,
    ValueNotFoundError,
)
from heliograph.pipelines.steps import records
from heliograph.pipelines.steps import step as step_module
from heliograph.pipelines.steps import store as store_module
from heliograph.pipelines.steps.entries import TopicEntries
from heliograph.pipelines.steps.store import StepStore
from heliograph.pipelines.steps.values import CHUNK_BYTES, Location
from heliograph.transfer_queue import HeliographStorageClient, register

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def client() -> Iterator[heliograph.Client]:
    with heliograph.local(bookies=3) as cluster, cluster.connect() as connected:
        yield connected


@pytest.fixture
def store(client: heliograph.Client, request: pytest.FixtureRequest) -> Iterator[StepStore]:
    made = StepStore(f"s-{request.node.name.replace('[', '-').replace(']', '')}", client)
    yield made
    made.close()


def ledgers_of(store: StepStore) -> dict[str, list[int]]:
    """Return the ledgers of the topics of values and of keys."""
    admin = store.client.admin  # type: ignore[union-attr]
    names = [str(one["name"]) for one in admin.list_topics("public/default")]
    mine = [name for name in names if name.startswith((f"{store.name}-step-", f"{store.name}-index-"))]
    return {name.rpartition(store.name)[2]: [row["ledger_id"] for row in admin.ledger_ranges(name)] for name in mine}


def test_values_of_any_size_come_back_by_key_and_by_location(store: StepStore) -> None:
    large = np.arange(700_000)  # 5.6 MB: six entries
    given: dict[str, Any] = {"0@a": 1, "0@b": large, "1@a": "text", "1@b": b"", "2@a": np.zeros((3, 4), np.float16)}
    stored = store.put(given, 7)
    assert [*stored] == [*given]
    assert len([*Location.parse(stored["0@b"]).positions()]) == 6
    for order in ([*given], [*reversed(given)], ["0@b"]):
        for found in (store.get(order, 7), store.get_at([stored[key] for key in order])):
            np.testing.assert_equal(found, [given[key] for key in order])
    assert store.keys(7) == [*given]
    store.put({"0@a": 2}, 7)
    assert store.get(["0@a"], 7) == [2]
    assert store.get_at([stored["0@a"]]) == [1], "a location is that of one value"
    assert [*store.find(["0@a", "nowhere"])] == ["0@a"]


def test_a_thousand_small_values_share_entries(store: StepStore) -> None:
    stored = store.put({f"{number}@reward": number for number in range(1_000)}, 1)
    entries = {position for text in stored.values() for position in Location.parse(text).positions()}
    assert len(entries) == 1
    assert store.get([f"{number}@reward" for number in (999, 0, 500)], 1) == [999, 0, 500]


def test_few_entries_are_held_at_once_however_many_values_are_read(
    store: StepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_module, "READ_ENTRIES", 3)
    given = {f"{number}": np.full(70_000, number) for number in range(20)}  # two in an entry, some in two entries
    stored = store.put({**given, "large": np.arange(700_000)}, 1)
    held: list[int] = []
    read = TopicEntries.read

    async def noted(self: TopicEntries, positions: Any) -> Any:
        found = await read(self, positions)
        held.append(len(found))
        return found

    monkeypatch.setattr(TopicEntries, "read", noted)
    order = [*reversed(given)]
    np.testing.assert_equal(store.get(order, 1), [given[key] for key in order])
    assert len(held) > 2
    assert max(held) <= 3 + 1  # I15
    assert len({one for text in stored.values() for one in Location.parse(text).positions()}) > 12
    np.testing.assert_equal(store.get(["large"], 1), [np.arange(700_000)])


def test_a_step_that_is_dropped_within_a_call_is_named_so(store: StepStore, monkeypatch: pytest.MonkeyPatch) -> None:
    other = pickle.loads(pickle.dumps(store))
    for step, name in enumerate(("locations", "clear")):
        store.put({"a": 1}, step)
        real = getattr(step_module.OpenStep, name)

        async def late(self: Any, keys: Any, step: int = step, real: Any = real) -> Any:
            await asyncio.to_thread(other.drop, step)
            return await real(self, keys)

        with monkeypatch.context() as patch:
            patch.setattr(step_module.OpenStep, name, late)
            with pytest.raises(StepDroppedError):
                store.get(["a"], step) if name == "locations" else store.clear(["a"], step)
        assert ledgers_of(store) == {}
    other.close()


def test_one_step_is_one_ledger_and_dropping_it_deletes_the_ledger(store: StepStore) -> None:
    for step in range(4):
        store.begin(step)
        for part in range(3):
            store.put({f"{part}": np.full(300_000, step)})
    before = ledgers_of(store)
    assert sorted(before) == sorted(f"-{kind}-{step}" for kind in ("step", "index") for step in range(4))
    assert all(len(ledgers) == 1 for ledgers in before.values())
    (location,) = store.find(["0"]).values()
    assert Location.parse(location).step == 3
    old = store.put({"late": 1}, 1)["late"]
    store.drop_before(2)
    assert store.steps() == [2, 3]
    assert sorted(ledgers_of(store)) == ["-index-2", "-index-3", "-step-2", "-step-3"]
    store.drop(2)
    assert store.steps() == [3]
    for call in (
        lambda: store.get(["0"], 1),
        lambda: store.get_at([old]),
        lambda: store.put({"x": 1}, 0),
        lambda: store.keys(2),
        lambda: store.clear(["0"], 2),
        lambda: store.begin(1),
    ):
        with pytest.raises(StepDroppedError, match="was dropped"):
            call()
    assert sorted(ledgers_of(store)) == ["-index-3", "-step-3"], "refused calls make no topic"
    np.testing.assert_equal(store.get(["2"], 3), [np.full(300_000, 3)])


def test_a_step_whose_keys_are_cleared_is_dropped_unless_it_is_the_newest(store: StepStore) -> None:
    other = pickle.loads(pickle.dumps(store))
    store.begin(1)
    store.put({"a": 1, "b": 2})
    store.clear(["a", "unknown"], 1)
    with pytest.raises(ValueNotFoundError, match="'a'"):
        other.get(["a", "b"], 1)
    store.clear(["b"], 1)
    assert other.keys(1) == []
    store.put({"a": 3})
    other.begin(2)
    assert (store.newest(), store.put({"c": 4}) and store.keys(2)) == (2, ["c"])
    other.clear(["a"], 1)
    assert store.steps() == [2]
    other.close()


def test_a_writer_that_is_late_leaves_no_topic(store: StepStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is dropped by another process between the entries of a put and its end."""
    other = pickle.loads(pickle.dumps(store))
    store.put({"a": 1}, 4)
    real = step_module.OpenStep.put

    async def slow(self: Any, *arguments: Any) -> Any:
        await asyncio.to_thread(other.drop, 4)
        return await real(self, *arguments)

    monkeypatch.setattr(step_module.OpenStep, "put", slow)
    with pytest.raises(StepDroppedError):
        store.put({"b": 2}, 4)
    assert ledgers_of(store) == {}
    other.close()


def test_a_writer_that_dies_before_the_keys_leaves_none(store: StepStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(self: Any, records: Any) -> None:
        raise ConnectionResetError("the writer is gone")

    with monkeypatch.context() as patch:
        patch.setattr(step_module.Records, "publish", die)
        with pytest.raises(ConnectionResetError):
            store.put({"a": 1, "b": 2}, 1)
    assert store.keys(1) == []
    store.put({"a": 3}, 1)
    assert store.get(["a"], 1) == [3]


def test_many_writers_and_readers(store: StepStore) -> None:
    def write(writer: int) -> None:
        mine = pickle.loads(pickle.dumps(store))
        for part in range(10):
            mine.put({f"{writer}-{part}-{one}": (writer, part, one) for one in range(20)}, part % 2)
        mine.close()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for one in threads:
        one.start()
    wanted = [f"{writer}-{part}-{one}" for writer in range(4) for part in range(0, 10, 2) for one in range(20)]
    found = store.get(wanted, 0, timeout=60)
    for one in threads:
        one.join()
    assert found == [tuple(map(int, key.split("-"))) for key in wanted]
    assert len(store.keys(0)) + len(store.keys(1)) == 800


async def test_the_forms_for_event_loops(store: StepStore) -> None:
    await store.begin_async(3)
    stored = await store.put_async({"a": 1})
    assert await store.get_async(["a"], 3) == [1]
    assert await store.get_at_async([stored["a"]]) == [1]
    assert await store.keys_async(3) == ["a"]
    assert (await store.find_async(["a"]), await store.newest_async(), await store.steps_async()) == (stored, 3, [3])
    waiting = asyncio.create_task(store.get_async(["b"], 3, timeout=60))
    await store.put_async({"b": 2})
    assert await waiting == [2]
    await store.clear_async(["a"], 3)
    await store.drop_async(3)
    await store.drop_before_async(9)
    with pytest.raises(RunningLoopError, match="_async"):
        store.keys(3)
    await store.close_async()


def test_open_steps_are_bounded(store: StepStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "OPEN_STEPS_MAX", 2)
    for step in range(5):
        store.put({"a": step}, step)
    assert [store.get(["a"], step) for step in range(5)] == [[step] for step in range(5)]
    assert store._made is not None
    assert len(store._made[1]._open) == 2  # I15


def test_bounds_are_named(client: heliograph.Client, store: StepStore) -> None:
    small = StepStore(store.name, client, value_bytes_max=CHUNK_BYTES, get_bytes_max=100)
    with pytest.raises(MessageTooLargeError) as refused:
        small.put({"a": 1, "b": bytes(CHUNK_BYTES)}, 1)
    assert (refused.value.field, refused.value.limit) == ("values", f"{CHUNK_BYTES} bytes")
    assert small.keys(1) == []
    small.put({"a": bytes(200)}, 1)
    with pytest.raises(BadRequestError, match="ask for fewer"):
        small.get(["a"], 1)
    small.close()
    for wrong in (-1, True, "1", 1 << 70):
        with pytest.raises(BadRequestError) as refused_step:
            store.put({"a": 1}, wrong)  # type: ignore[arg-type]
        assert refused_step.value.field == "step"
    with pytest.raises(BadRequestError, match="value_bytes_max"):
        StepStore("x", client, value_bytes_max=0)
    with pytest.raises(ValueNotFoundError, match="nowhere"):
        store.get(["nowhere"], 8)
    assert store.steps() == [1], "a question makes no topic"


def test_a_put_beyond_the_bound_of_keys_is_refused_and_the_step_stays_readable(
    store: StepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (step_module, records):
        monkeypatch.setattr(module, "KEYS_MAX", 3, raising=False)
    store.put({"a": 1, "b": 2}, 1)
    store.put({"a": 3, "c": 4}, 1)
    with pytest.raises(BadRequestError, match="4 keys") as refused:
        store.put({"c": 5, "d": 6}, 1)
    assert (refused.value.field, refused.value.limit) == ("keys", "3 keys")
    assert store.get(["a", "b", "c"], 1) == [3, 2, 4]


async def _manager(client: Any, keys: list[str], values: list[Any]) -> tuple[list[Any], list[Any]]:
    """Call a client as TransferQueue's manager for key-value stores does: put in a thread, get on the loop."""
    metas = await asyncio.get_running_loop().run_in_executor(None, client.put, keys, values)
    assert len(metas) == len(keys)
    found = client.get(keys=keys, shapes=[None] * len(keys), dtypes=[None] * len(keys), custom_backend_meta=metas)
    return metas, found


def test_the_calls_of_transfer_queue(client: heliograph.Client) -> None:
    """Our own copy of its calls: the package needs torch, and is not among the locked ones."""
    given = {"name": "of-transfer-queue", "address": client.service_urls[0]}
    made, other = HeliographStorageClient(given), HeliographStorageClient(given)
    keys = [f"{number}@{field}" for field in ("prompt", "reward") for number in range(50)]
    values: list[Any] = [np.arange(number) for number in range(50)] + [number / 2 for number in range(50)]
    metas, found = asyncio.run(_manager(made, keys, values))
    np.testing.assert_equal(found, values)
    np.testing.assert_equal(other.get(keys[::-1], custom_backend_meta=metas[::-1]), values[::-1])
    np.testing.assert_equal(other.get(keys[3:5]), values[3:5])
    np.testing.assert_equal(other.get(keys[3:5], custom_backend_meta=[None, metas[4]]), values[3:5])
    made.store.begin(1)
    assert other.put(["50@prompt"], ["next"])[0].startswith("1:1:")
    other.clear(keys=keys[:60], custom_backend_meta=metas[:60])
    with pytest.raises(ValueNotFoundError, match="0@prompt"):
        made.get(["0@prompt"])
    other.clear(keys=keys[60:])
    assert made.store.steps() == [1], "a partition that was cleared is gone with its ledgers"
    with pytest.raises(StepDroppedError):
        made.get(keys[:1], custom_backend_meta=metas[:1])
    other.clear(keys=keys, custom_backend_meta=metas)
    for wrong in (["a", "b"], ["a", "a"]):
        with pytest.raises(BadRequestError):
            made.put(wrong, [1] * (1 + (wrong[0] == wrong[1])))
    for one in (made, other):
        one.store.close()
        one.store.client.close()  # type: ignore[union-attr]


def test_the_client_registers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["transfer_queue", "transfer_queue.storage", "transfer_queue.storage.clients"]
    with pytest.raises(UnsupportedError, match="'TransferQueue'"):
        register()
    known: dict[str, type] = {}
    base = ModuleType("transfer_queue.storage.clients.base")

    class StorageClientFactory:
        @staticmethod
        def register(name: str) -> Any:
            return lambda made: known.setdefault(name, made)

    base.StorageClientFactory = StorageClientFactory  # type: ignore[attr-defined]
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    register()
    assert known == {"HeliographStorageClient": HeliographStorageClient}

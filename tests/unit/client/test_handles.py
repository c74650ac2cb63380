"""The sync handles: use from threads, in pickles and in forked children."""

from __future__ import annotations

import asyncio
import os
import pickle
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import heliograph
from heliograph.base import errors
from heliograph.client import access
from heliograph.client.aio.handle import AsyncHandle
from heliograph.client.sync.handle import threads
from tests.unit.broker.world import turns
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.world import QUICK, TOPIC, stored
from tests.waits import block_until


class BrokerThread:
    """A fake broker on an event loop thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.broker = FakeBroker()
        self.run(self.broker.__aenter__())

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def call(self, function: Callable[[], Any]) -> Any:
        async def on_loop() -> Any:
            return function()

        return self.run(on_loop())

    def stop(self) -> None:
        self.run(self.broker.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def server() -> Iterator[BrokerThread]:
    thread = BrokerThread()
    yield thread
    thread.stop()


@pytest.fixture
def client(server: BrokerThread) -> Iterator[heliograph.Client]:
    with heliograph.connect(server.broker.url, **QUICK) as client:
        yield client


def in_child(check: Callable[[], None]) -> None:
    """Run ``check`` in a forked child and expect it to pass within 60 seconds."""
    child = os.fork()
    if child == 0:
        try:
            check()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"in the child: {error!r}\n".encode())
            os._exit(1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def test_every_sync_method(client: heliograph.Client) -> None:
    topic = client.topic("t")
    assert (topic.name, topic.partitions(), client.partitions("t")) == (TOPIC, 0, 0)
    consumer = topic.consumer("s", initial_position="earliest", nack_delay_ms=1)
    with topic.producer() as producer:
        first = producer.send("a", key="k", properties={"x": "y"})
        later = [producer.send_async(b"%d" % index) for index in range(10)]
        producer.send_many(["b", "c"])
        producer.flush()
        assert producer.name == "fake-1"
        assert [future.result(5).entry_id >= 1 for future in later] == [True] * 10
    messages: list[heliograph.Message] = []
    while len(messages) < 13:
        messages += consumer.receive_many(100, 60)
    assert [message.value for message in messages] == [b"a", *(b"%d" % index for index in range(10)), b"b", b"c"]
    assert messages[0].message_id == first
    consumer.ack(messages[0])
    consumer.ack_many(message for message in messages[1:5])
    consumer.nack(messages[5])
    consumer.ack_cumulative(messages[-1])
    consumer.seek("earliest")
    assert consumer.receive(60).value == b"a"
    assert list(consumer.last_message_ids()) == [TOPIC]
    for _ in range(12):
        consumer.receive(60)
    with pytest.raises(TimeoutError):
        consumer.receive(0.01)  # the seek cancelled the negative acknowledgement
    consumer.close()
    with client.reader("t", "earliest") as reader:
        assert reader.has_message_available()
        assert next(reader).value == b"a"
        reader.seek("latest")
    with pytest.raises(errors.AlreadyClosedError):
        consumer.receive()
    assert list(consumer) == []
    again = client.consumer("t", "s", type="shared")
    again.unsubscribe()


def test_many_threads_share_one_producer(client: heliograph.Client, server: BrokerThread) -> None:
    producer = client.producer("t")
    threads = [
        threading.Thread(target=lambda n=number: [producer.send(f"{n}:{index}") for index in range(20)])
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    got = stored(server.broker.store)
    assert len(got) == 160
    for number in range(8):
        assert [value for value in got if value.startswith(b"%d:" % number)] == [
            b"%d:%d" % (number, index) for index in range(20)
        ]
    assert len(server.broker.connections) == 1


def test_every_handle_can_be_pickled(client: heliograph.Client, server: BrokerThread) -> None:
    producer = client.producer("t", batch_messages=7)
    producer.send("1")
    consumer = client.consumer("t", "s", type="shared", initial_position="earliest", name="me")
    reader = client.reader("t", "earliest")
    copies = pickle.loads(pickle.dumps((client, client.topic("t"), producer, consumer, reader)))
    client_copy, topic_copy, producer_copy, consumer_copy, reader_copy = copies
    assert producer_copy.client is client_copy
    assert producer_copy.options.batch_messages == 7
    assert topic_copy.name == TOPIC
    consumer.close()
    assert consumer_copy.receive(60).value == b"1"
    assert reader_copy.receive(60).value == b"1"
    producer_copy.send("2")
    producer.send("3")
    assert stored(server.broker.store) == [b"1", b"2", b"3"]
    assert len(server.broker.connections) == 2
    client_copy.close()


async def test_async_handles_can_be_pickled_too() -> None:
    async with FakeBroker() as broker, await heliograph.connect_async(broker.url) as client:
        producer = client.producer("t")
        await producer.send("1")
        copy = pickle.loads(pickle.dumps(producer))
        await copy.send("2")
        consumer = pickle.loads(pickle.dumps(copy.client.consumer("t", "s", initial_position="earliest")))
        assert [(await consumer.receive(60)).value for _ in range(2)] == [b"1", b"2"]
        await consumer.client.close()
        await copy.client.close()


def test_pickles_hold_no_state_of_an_event_loop(client: heliograph.Client) -> None:
    assert len(pickle.dumps(client.producer("t"))) < 2000


def test_a_forked_child_reconnects_and_the_parent_goes_on(client: heliograph.Client, server: BrokerThread) -> None:
    producer, reader = client.producer("t"), client.reader("t", "earliest")
    producer.send("parent 1")

    def child() -> None:
        producer.send("child")
        assert [reader.receive(60).value for _ in range(2)] == [b"parent 1", b"child"]

    in_child(child)
    producer.send("parent 2")
    assert stored(server.broker.store) == [b"parent 1", b"child", b"parent 2"]
    assert [reader.receive(60).value for _ in range(3)] == [b"parent 1", b"child", b"parent 2"]


def test_a_forked_child_does_not_keep_the_parents_sockets(client: heliograph.Client, server: BrokerThread) -> None:
    client.producer("t").send("x")
    [before] = server.call(lambda: list(server.broker.connections))
    released, waiting = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(waiting)
        os.read(released, 1)  # until the parent closes its end
        os._exit(0)
    os.close(released)
    try:
        client.close()
        block_until(lambda: not server.call(lambda: before in server.broker.connections))
    finally:
        os.close(waiting)
        os.waitpid(child, 0)


def test_an_exclusive_subscription_is_busy_in_the_child_until_the_parent_closes_its_consumer(
    client: heliograph.Client,
) -> None:
    consumer = client.consumer("t", "s")

    def busy() -> None:
        with pytest.raises(errors.ConsumerBusyError):
            consumer.receive(1)

    in_child(busy)
    consumer.close()


def test_a_garbage_collected_handle_is_closed(client: heliograph.Client, server: BrokerThread) -> None:
    client.consumer("t", "s")
    block_until(lambda: not server.call(lambda: server.broker.store.topics[TOPIC].subscriptions["s"].consumers))
    client.consumer("t", "s").close()


def test_connecting_to_nothing_says_so() -> None:
    with pytest.raises(errors.ConnectionLostError):
        heliograph.connect("pulsar://127.0.0.1:1", operation_timeout_ms=1)


def test_connecting_waits_for_a_broker_that_is_restarting(
    server: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.broker.url
    server.run(server.broker.stop())
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            server.run(server.broker.__aenter__())

    monkeypatch.setattr(access, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    with heliograph.connect(url, **QUICK) as client:
        client.ping()
    assert len(pauses) == 3
    server.run(server.broker.stop())

    async def later() -> None:
        connecting = asyncio.ensure_future(heliograph.connect_async(url, **QUICK))
        await asyncio.sleep(0.1)
        assert not connecting.done()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(server.broker.__aenter__(), server.loop))
        await (await connecting).close()

    asyncio.run(later())


def test_connecting_does_not_wait_for_brokers_that_tls_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: heliograph.Client) -> None:
        raise errors.ConnectionLostError("refused") from ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(heliograph.Client, "ping", refused)
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pytest.fail))
    with pytest.raises(errors.ConnectionLostError, match="refused"):
        heliograph.connect("pulsar://127.0.0.1:1")


def test_a_sync_handle_on_the_loop_thread_is_refused_instead_of_hanging(client: heliograph.Client) -> None:
    async def on_loop() -> None:
        client.partitions("t")

    with pytest.raises(RuntimeError, match="await AsyncClient"):
        threads.current().run(on_loop())


class CountedHandle(AsyncHandle):
    """A handle that opens when the test allows it, and counts its openings."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open = asyncio.Event()
        self.openings = 0

    async def _do_open(self) -> None:
        await self.may_open.wait()
        self.openings += 1

    async def _do_close(self) -> None:
        self.openings -= 1


class BriefCall(CountedHandle):
    """A handle with one call, which ends after ``close`` looked and before the closing runs."""

    calls = 1

    def _unfinished(self) -> list[asyncio.Future[None]]:
        self.calls, unfinished = 0, self.calls
        return [asyncio.get_running_loop().create_future()] * unfinished


async def test_a_call_that_ends_as_its_handle_begins_to_close_is_not_waited_for() -> None:
    handle = BriefCall()
    handle.may_open.set()
    await handle.open()
    await handle.close()
    assert handle.openings == 0


def test_an_open_async_handle_is_refused_in_another_event_loop(server: BrokerThread) -> None:
    """It would wait for what happens in a loop that does not run, or lose what it was given in silence."""

    async def used(client: heliograph.AsyncClient) -> tuple[heliograph.AsyncProducer, heliograph.AsyncConsumer]:
        producer = client.producer("t")
        await producer.send(b"one")
        return producer, await client.consumer("t", "s", initial_position="earliest")

    with asyncio.Runner() as first:
        client = first.run(heliograph.connect_async(server.broker.url, **QUICK))
        producer, consumer = first.run(used(client))
        message = first.run(consumer.receive(60))
        calls: list[Callable[[], Any]] = [
            lambda: producer.send(b"two"),
            lambda: producer.enqueue(b"two"),
            lambda: producer.send_many([b"two"]),
            producer.flush,
            producer.close,
            lambda: client.producer("new").send(b"two"),
            lambda: consumer.receive(60),
            lambda: consumer.ack(message),
            lambda: consumer.ack_cumulative(message),
            lambda: consumer.nack(message),
            lambda: consumer.seek("earliest"),
            consumer.last_message_ids,
            consumer.close,
            client.close,
        ]
        for call in calls:
            with pytest.raises(errors.WrongLoopError, match=r"connect_async"):
                asyncio.run(call())
        copy = pickle.loads(pickle.dumps(producer))

        async def elsewhere() -> None:
            async with copy.client, copy:
                await copy.send(b"copied")

        asyncio.run(elsewhere())
        first.run(producer.send(b"three"))
        first.run(client.close())
    assert stored(server.broker.store) == [b"one", b"copied", b"three"]


async def test_an_unpickled_consumer_acknowledges_at_its_first_use() -> None:
    async with FakeBroker() as broker, await heliograph.connect_async(broker.url, **QUICK) as client:
        await client.producer("t").send_many([b"one", b"two"])
        consumer = await client.consumer("t", "s", initial_position="earliest")
        message = await consumer.receive(60)
        await consumer.close()
        for name in ("ack", "ack_cumulative", "nack"):
            copy = pickle.loads(pickle.dumps(consumer))
            await getattr(copy, name)(message.message_id)
            await copy.client.close()
        assert broker.store.topics[TOPIC].subscriptions["s"].acked[0] == 0b10


async def test_an_opening_that_succeeds_as_its_only_caller_is_cancelled_is_not_repeated() -> None:
    """A second opening would find the topic taken by the first, which is never closed."""
    handle = CountedHandle()
    waiter = asyncio.create_task(handle.open())
    await turns(lambda: handle._opening is not None)
    opening = handle._opening
    assert opening is not None
    opening.add_done_callback(lambda _: waiter.cancel())  # before the waiter runs
    handle.may_open.set()
    await asyncio.gather(waiter, return_exceptions=True)
    assert waiter.cancelled()
    await handle.open()
    assert handle.is_open
    assert handle.openings == 1
    await handle.close()
    assert handle.openings == 0


def test_a_sync_handle_on_a_running_loop_is_refused_and_names_its_counterpart(
    client: heliograph.Client, server: BrokerThread
) -> None:
    producer = client.producer("t")
    reader = client.reader("t", "earliest")

    async def scenario() -> None:
        with pytest.raises(errors.RunningLoopError, match=r"Producer\.send waits .* await AsyncProducer"):
            producer.send("1")
        with pytest.raises(errors.RunningLoopError, match=r"Reader\.receive waits .* await AsyncReader"):
            reader.receive()
        with pytest.raises(errors.RunningLoopError, match=r"Client\.ping waits .* await AsyncClient"):
            client.ping()
        with pytest.raises(errors.RunningLoopError, match=r"heliograph\.connect waits .* await heliograph\.connect_as"):
            heliograph.connect(server.broker.url)
        with pytest.raises(RuntimeError):
            producer.close()
        await asyncio.wrap_future(producer.send_async("2"))  # does not wait
        await asyncio.to_thread(producer.send, "3")

    asyncio.run(scenario())
    assert stored(server.broker.store) == [b"2", b"3"]
    assert [reader.receive(60).value for _ in range(2)] == [b"2", b"3"]


async def test_a_sync_handle_works_in_the_cells_of_a_notebook(
    client: heliograph.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of the kernel runs in the thread of its cells."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))

    async def elsewhere() -> None:
        client.ping()

    client.ping()
    with pytest.raises(errors.RunningLoopError):
        await asyncio.to_thread(asyncio.run, elsewhere())

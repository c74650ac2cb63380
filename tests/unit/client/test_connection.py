"""Connections to brokers: addresses, lookups, redirects, handshakes, keep-alive, requests without an answer."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

import heliograph
from heliograph.base import errors
from heliograph.base.backoff import Backoff
from heliograph.client.access import parse_address
from heliograph.client.aio import session
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.producer.routing import Router
from heliograph.client.aio.session import REGISTERING_MAX
from heliograph.client.aio.transport.connection import BrokerConnection
from heliograph.client.options import ClientOptions
from heliograph.cluster.ports import pick_free
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.client.fake_broker import FakeBroker, FakeStore, T
from tests.unit.client.world import TOPIC, client_of
from tests.waits import many_turns, until


@pytest.mark.parametrize(
    ("address", "urls"),
    [
        ("pulsar://a", ("pulsar://a",)),
        ("pulsar://a:1,b:2", ("pulsar://a:1", "pulsar://b:2")),
        ("pulsar+ssl://[::1]:3/", ("pulsar+ssl://[::1]:3",)),
    ],
)
def test_addresses(address: str, urls: tuple[str, ...]) -> None:
    assert parse_address(address) == urls


@pytest.mark.parametrize(
    "address", ["", "a:1", "http://a:1", "pulsar://", "pulsar://a:b", "pulsar://a:1,,", "pulsar://a:0"]
)
def test_bad_addresses(address: str) -> None:
    with pytest.raises(errors.BadRequestError) as caught:
        parse_address(address)
    assert caught.value.field == "address"


async def test_unreachable_brokers_are_listed() -> None:
    ports = [pick_free(), pick_free()]
    address = f"pulsar://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
    with pytest.raises(errors.ConnectionLostError) as caught:
        await heliograph.connect_async(address, operation_timeout_ms=10)
    assert all(f"127.0.0.1:{port}" in str(caught.value) for port in ports)


async def test_one_broker_that_answers_is_enough() -> None:
    async with FakeBroker() as broker:
        address = f"pulsar://127.0.0.1:{pick_free()},{broker.url.removeprefix('pulsar://')}"
        async with await heliograph.connect_async(address) as client, client.producer("t") as producer:
            await producer.send(b"x")


async def test_one_connection_per_broker_serves_all_handles() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producers = [client.producer(f"t{index}") for index in range(5)]
        consumers = [client.consumer(f"t{index}", "s") for index in range(5)]
        await asyncio.gather(*(handle.open() for handle in (*producers, *consumers)))
        assert len(broker.connections) == 1


async def test_lookups_follow_redirects_with_authority() -> None:
    async with FakeBroker() as third, FakeBroker() as second, FakeBroker() as first:
        first.redirects[TOPIC], second.redirects[TOPIC] = second.url, third.url
        async with await client_of(first) as client, client.producer("t") as producer:
            await producer.send(b"x")
        assert len(third.store.topics[TOPIC].entries) == 1
        [asked] = second.of_type(T.LOOKUP)
        assert asked.lookup.authoritative
        assert not first.of_type(T.LOOKUP)[0].lookup.authoritative


@pytest.mark.parametrize("is_consumer", [False, True])
async def test_an_owner_that_another_broker_knows_is_not_asked_unless_it_refuses(is_consumer: bool) -> None:
    async with FakeBroker() as owner, FakeBroker() as first, await client_of(first) as client:
        first.redirects[TOPIC], first.assigns = owner.url, False
        await (client.consumer("t", "s") if is_consumer else client.producer("t"))
        assert not owner.of_type(T.LOOKUP)
        owner.refuse(T.SUBSCRIBE if is_consumer else T.PRODUCER, pb.SERVICE_NOT_READY)  # it has just ceased to be
        await (client.consumer("t", "other") if is_consumer else client.producer("t"))
        assert len(owner.of_type(T.LOOKUP)) == 1


async def test_the_last_ones_of_many_producers_wait_until_the_first_ones_are_registered() -> None:
    """All producers of a broker that died come back together."""
    async with FakeBroker() as broker, await client_of(broker) as client:
        producers = [client.producer(f"t{index}") for index in range(5 * REGISTERING_MAX)]
        await asyncio.gather(*(producer.open() for producer in producers))
        broker.commands.clear()
        broker.silent.add(T.PRODUCER)
        broker.drop_connections()
        await until(lambda: len(broker.of_type(T.PRODUCER)) == REGISTERING_MAX)
        await many_turns()
        assert len(broker.of_type(T.LOOKUP)) == REGISTERING_MAX
        broker.silent.clear()
        broker.drop_connections()  # those that have no answer ask again, after all others
        await asyncio.gather(*(producer.send(b"x") for producer in producers))


async def test_a_handle_waits_for_others_no_longer_than_an_operation_may() -> None:
    async with FakeBroker() as broker, await client_of(broker, operation_timeout_ms=100) as client:
        (await client.session()).registering._free = asyncio.Semaphore(0)  # all others have no answer
        with pytest.raises(errors.RequestTimeoutError, match="other handles have no answer"):
            await client.producer("t").open()
        assert not broker.of_type(T.LOOKUP)


@pytest.mark.parametrize(("mode", "seconds"), [("shared", 0.01), ("wait_for_exclusive", 3_600.0)])
async def test_handles_whose_topics_give_no_answer_keep_no_others_waiting(
    mode: Any, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "TURN_SECONDS", seconds)
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.silent.add(T.PRODUCER)
        stuck = [client.producer(f"t{index}", access_mode=mode) for index in range(REGISTERING_MAX)]
        opening = [asyncio.ensure_future(producer.open()) for producer in stuck]
        await until(lambda: len(broker.of_type(T.PRODUCER)) == REGISTERING_MAX)
        broker.silent.clear()
        await client.producer("other")
        assert not any(task.done() for task in opening)
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        assert (await client.session()).registering._free._value == REGISTERING_MAX  # each was given back once


async def test_redirects_in_a_circle_end() -> None:
    async with FakeBroker() as broker, await client_of(broker, operation_timeout_ms=500) as client:
        broker.redirects[TOPIC] = broker.url
        with pytest.raises(errors.ServiceNotReadyError, match="redirected 20 times"):
            await client.producer("t")


async def test_refused_lookups_are_retried_unless_the_refusal_is_final() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.refuse(T.LOOKUP, pb.METADATA_ERROR)  # its bundle changes its owner
        broker.refuse(T.PARTITIONED_METADATA, pb.SERVICE_NOT_READY)
        async with client.producer("t") as producer:
            await producer.send(b"x")
        broker.refuse(T.LOOKUP, pb.INVALID_TOPIC_NAME)
        with pytest.raises(errors.InvalidTopicNameError):
            await client.producer("other")


async def test_a_refused_handshake_says_why() -> None:
    async with FakeBroker() as broker:
        broker.refuse(T.CONNECT, pb.AUTHENTICATION_ERROR, "bad token")
        with pytest.raises(errors.NotPermittedError, match="bad token"):
            await client_of(broker, token="secret")
        [command] = broker.of_type(T.CONNECT)
        assert (command.connect.auth_method_name, command.connect.auth_data) == ("token", b"secret")
        assert "secret" not in repr(ClientOptions(("pulsar://a",), token="secret"))


async def test_a_silent_handshake_times_out() -> None:
    async with FakeBroker() as broker:
        broker.silent.add(T.CONNECT)
        with pytest.raises(errors.ConnectionLostError, match="did not"):
            await client_of(broker, connect_timeout_ms=50, operation_timeout_ms=10)


async def test_a_request_without_an_answer_times_out() -> None:
    async with FakeBroker() as broker, await client_of(broker, operation_timeout_ms=300) as client:
        broker.silent.add(T.PARTITIONED_METADATA)
        with pytest.raises(errors.RequestTimeoutError):
            await client.partitions("t")


async def test_a_peer_that_answers_no_ping_is_disconnected_and_a_live_one_is_not() -> None:
    async with FakeBroker() as broker, await client_of(broker, keep_alive_ms=250) as client:
        producer = await client.producer("t")
        await until(lambda: len(broker.of_type(T.PING)) >= 3)
        assert len(broker.of_type(T.CONNECT)) == 1
        broker.silent.add(T.PING)
        await until(lambda: len(broker.of_type(T.CONNECT)) == 2)
        broker.silent.clear()
        await producer.send(b"x")
        await producer.close()


async def test_a_broker_that_stands_still_is_left_as_soon_as_another_one_has_its_topics() -> None:
    store = FakeStore()
    async with FakeBroker(store) as first, FakeBroker(store) as second:
        second.redirects[TOPIC] = first.url
        options = ClientOptions((first.url, second.url), silence_ms=100, keep_alive_ms=600_000)
        async with AsyncClient(options) as client:
            producer = await client.producer("t")
            consumer = await client.consumer("t", "s")
            await producer.send(b"1")
            first.silent |= set(T.Type.values())
            sending = asyncio.ensure_future(producer.send(b"2"))
            await until(lambda: len(second.of_type(T.LOOKUP)) >= 2)
            assert not sending.done(), "the topic has not moved yet"
            del second.redirects[TOPIC]
            first.redirects[TOPIC] = second.url
            await sending
            assert second.of_type(T.SEND)
            await until(lambda: second.of_type(T.SUBSCRIBE))
            await consumer.close()
            await producer.close()


async def test_pings_of_the_broker_are_answered() -> None:
    async with FakeBroker() as broker, await client_of(broker):
        broker.connections[0].answer(ping=pb.CommandPing())
        await until(lambda: broker.of_type(T.PONG))


async def test_a_peer_that_breaks_the_protocol_is_disconnected() -> None:
    async def _greet_in_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(_greet_in_http, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(errors.ProtocolError):
            await heliograph.connect_async(f"pulsar://127.0.0.1:{port}")


async def test_a_program_that_takes_the_address_of_a_broker_meanwhile_ends_no_handle() -> None:
    async def _greet_in_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.append(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    greeted: list[int] = []
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer, consumer = await client.producer(TOPIC).open(), await client.consumer(TOPIC, "s").open()
        await broker.stop()
        async with await asyncio.start_server(_greet_in_http, "127.0.0.1", broker._port):
            await until(lambda: len(greeted) > 2)
        async with broker:
            await producer.send(b"x")
            await until(lambda: len(broker.of_type(T.SUBSCRIBE)) == 2)
            await consumer.close()
            await producer.close()


async def test_unanswered_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:  # I15
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.silent.add(T.PARTITIONED_METADATA)
        monkeypatch.setattr("heliograph.client.aio.transport.connection.REQUESTS_MAX", 3)
        connection: BrokerConnection = await (await client.session()).lookup.any_connection()
        futures = [connection.request(_question) for _ in range(4)]
        with pytest.raises(errors.QuotaExceededError):
            await futures[3]
        broker.drop_connections()
        for future in futures[:3]:
            with pytest.raises(errors.ConnectionLostError):
                await future


def _question(request_id: int) -> pb.BaseCommand:
    question = pb.CommandPartitionedMetadata(topic=TOPIC, request_id=request_id)
    return T(type=T.PARTITIONED_METADATA, partitioned_metadata=question)


async def test_a_closed_client_stays_closed() -> None:
    async with FakeBroker() as broker:
        client = await client_of(broker)
        producer, consumer = await client.producer("t"), await client.consumer("t", "s")
        await client.close()
        await client.close()
        for call in (producer.send(b"x"), consumer.receive(), client.partitions("t")):
            with pytest.raises(errors.AlreadyClosedError):
                await call
        await until(lambda: not broker.connections)


def test_pauses_double_up_to_a_limit_with_jitter() -> None:
    backoff = Backoff(100, 1000, Random(1))
    pauses = [backoff.pause() for _ in range(8)]
    for pause, whole in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1], strict=True):
        assert 0.8 * whole <= pause <= whole
    assert len(set(pauses[4:])) == 4
    backoff.reset()
    assert backoff.pause() <= 0.1


def test_routing_by_key_and_round_robin() -> None:
    router = Router(3, "java", first=2)
    assert router.of_key("a") == 97 % 3
    assert [router.advance() for _ in range(4)] == [0, 1, 2, 0]
    assert router.split(["a", None, "b", None]) == {97 % 3: [0, 1, 3], 98 % 3: [2]}
    assert Router(1).split(["a", None]) == {0: [0, 1]}
    assert Router(5, "murmur3").of_key("a") in range(5)


async def test_asking_ray_again_when_no_known_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeBroker() as broker:
        asked: list[Any] = []

        def service_urls(namespace: str, *, encrypted: bool) -> list[str]:
            asked.append((namespace, encrypted))
            return [broker.url]

        monkeypatch.setattr("heliograph.client.discovery.service_urls", service_urls)
        options = ClientOptions((f"pulsar://127.0.0.1:{pick_free()}",), discovery_namespace="here")
        async with heliograph.AsyncClient(options) as client:
            await client.ping()
        async with await heliograph.connect_async(namespace="there") as client:
            assert client.service_urls == [broker.url]
        assert asked == [("here", False), ("there", False)]

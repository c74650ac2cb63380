"""The answers to one connection's producers: their order, refusals and limits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from heliograph.actors.broker.limits.publish_budget import PENDING_OVERHEAD_BYTES
from heliograph.actors.broker.protocol.connection import OPENINGS_MAX
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import STOPS_AT_REFUSAL, encode_chunks, encode_entry_of, plain_head
from heliograph.protocol.entry import encode_entry
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import ENTRY, Client, LoneBroker, T
from tests.unit.broker.world import turns

TOPIC = TopicName.parse("orders")
DAMAGED = ENTRY[:-1] + b"?"
CPP = "Pulsar-CPP-v4.2.0"


def produce(client: Client, producer_id: int = 1, **fields: object) -> None:
    wanted = pb.CommandProducer(topic=str(TOPIC), producer_id=producer_id, request_id=producer_id, **fields)  # type: ignore[arg-type]
    client.say(T(type=T.PRODUCER, producer=wanted))


def send(client: Client, sequence_id: int, section: bytes = ENTRY, *, is_above_limit: bool = False) -> None:
    wanted = pb.CommandSend(producer_id=1, sequence_id=sequence_id)
    if is_above_limit:
        wanted.message_id.CopyFrom(pb.MessageIdData(ledger_id=1, entry_id=1, ack_set=[-1] * 70_000))
    client.say(T(type=T.SEND, send=wanted), section)


def verdicts(client: Client) -> list[tuple[str, int]]:
    """Return receipts (R with the place of an entry, D without) and refusals (with their code), in order."""
    found = []
    for answer in client.transport.answers:
        if answer.type == T.SEND_RECEIPT:
            is_stored = answer.send_receipt.message_id.ledger_id < 1 << 63
            found.append(("R" if is_stored else "D", answer.send_receipt.sequence_id))
        elif answer.type == T.SEND_ERROR:
            found.append((str(answer.send_error.error), answer.send_error.sequence_id))
    return found


@pytest.mark.parametrize(("version", "code"), [(CPP, pb.CHECKSUM_ERROR), ("other", pb.NOT_ALLOWED_ERROR)])
async def test_refusals_keep_their_place_among_the_receipts(lone: LoneBroker, version: str, code: int) -> None:
    """I2: a client takes an answer only for the oldest entry that it waits for."""
    client = Client(lone.broker, version)
    produce(client)
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    topic = lone.broker.topics.find(TOPIC)
    assert topic is not None
    topic.apply_policies(replace(topic.policies, max_message_bytes=len(ENTRY)))
    lone.ledgers.held = True
    large = encode_entry_of("p", 0, 1, [b"x" * 100], None)
    for sequence_id, section in enumerate((ENTRY, large, ENTRY, DAMAGED, b"?", ENTRY)):
        send(client, sequence_id, section)
    await turns(lambda: topic.ledger.pending == 3)
    assert verdicts(client) == []
    lone.ledgers.held = False
    next(reversed(lone.ledgers.writers.values())).release()
    await turns(lambda: len(verdicts(client)) == 6)
    damaged = str(pb.CHECKSUM_ERROR)
    assert verdicts(client) == [("R", 0), (str(code), 1), ("R", 2), (damaged, 3), (str(code), 4), ("R", 5)]
    assert lone.broker._publish_budget.bytes == 0
    client.leave()


async def test_chunks_after_a_refused_one_are_refused_too(client: Client, lone: LoneBroker) -> None:
    """The last chunk of a large message may be within a limit that the others are above."""
    produce(client)
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    topic = lone.broker.topics.find(TOPIC)
    assert topic is not None
    topic.apply_policies(replace(topic.policies, max_message_bytes=500))
    for sequence_id, size in ((0, 2_010), (1, 0), (2, 300)):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
        for chunk in encode_chunks(metadata, plain_head(size), bytes(size), pb.NONE, 1_000 if size > 300 else 100):
            send(client, sequence_id, chunk)
    await turns(lambda: len(verdicts(client)) == 7)
    refused = str(pb.NOT_ALLOWED_ERROR)
    assert verdicts(client) == [(refused, 0)] * 3 + [("R", 1)] + [("R", 2)] * 3
    assert topic.ledger.chain.end == 4


@pytest.mark.parametrize(
    ("count", "packed"), [(0, {}), (-5, {}), (1_000, {}), (1_000, {"compression": pb.LZ4, "uncompressed_size": 5_999})]
)
async def test_a_batch_that_cannot_have_as_many_messages_as_it_says_is_refused(
    client: Client, count: int, packed: dict[str, int]
) -> None:
    """Consumers would wait for them; stock ones of C++ and Python read past its end."""
    produce(client)
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    fields: dict[str, Any] = {"num_messages_in_batch": count, **packed}
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)
    send(client, 0, encode_entry(metadata, plain_head(1) + b"x"))
    await turns(lambda: client.answer(T.SEND_ERROR))
    message = client.transport.answers[-1].send_error.message
    assert f"says that it has {count} messages" in message
    metadata.num_messages_in_batch, metadata.uncompressed_size = 1, 6_000
    send(client, 1, encode_entry(metadata, plain_head(0)))
    await turns(lambda: client.answer(T.SEND_RECEIPT))


async def test_nothing_is_stored_after_a_refusal_where_the_client_asks_for_that(client: Client) -> None:
    produce(client, metadata=[pb.KeyValue(key=STOPS_AT_REFUSAL, value="true")])
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    for sequence_id, section in enumerate((ENTRY, b"?", ENTRY, ENTRY)):
        send(client, sequence_id, section)
    await turns(lambda: len(verdicts(client)) == 4)
    refused = str(pb.NOT_ALLOWED_ERROR)
    assert verdicts(client) == [("R", 0), (refused, 1), (refused, 2), (refused, 3)]


@pytest.mark.parametrize("stops", [False, True])
async def test_a_command_above_a_limit_is_refused_as_an_entry_is(client: Client, lone: LoneBroker, stops: bool) -> None:
    """The client gets the answer in turn, also for later chunks, and for all later entries if it asks for that."""
    produce(client, metadata=[pb.KeyValue(key=STOPS_AT_REFUSAL, value="true")] if stops else [])
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    topic = lone.broker.topics.find(TOPIC)
    assert topic is not None
    lone.ledgers.held = True
    send(client, 0)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    chunks = encode_chunks(metadata, plain_head(300), bytes(300), pb.NONE, 100)
    for number, chunk in enumerate(chunks):
        send(client, 1, chunk, is_above_limit=number == 0)
    send(client, 2)
    assert verdicts(client) == []
    lone.ledgers.held = False
    next(reversed(lone.ledgers.writers.values())).release()
    await turns(lambda: len(verdicts(client)) == 5)
    refused = str(pb.NOT_ALLOWED_ERROR)
    assert verdicts(client) == [("R", 0), *[(refused, 1)] * 3, (refused if stops else "R", 2)]
    assert topic.ledger.chain.end == (1 if stops else 2)
    assert lone.broker._publish_budget.bytes == 0


async def test_duplicates_keep_their_place_among_the_receipts(lone: LoneBroker) -> None:
    first = Client(lone.broker)
    produce(first, producer_name="me")
    await turns(lambda: first.answer(T.PRODUCER_SUCCESS))
    topic = lone.broker.topics.find(TOPIC)
    assert topic is not None
    topic.apply_policies(replace(topic.policies, deduplication=True))
    await turns(lambda: topic.admission.dedup.current is not None)
    send(first, 0)
    await turns(lambda: verdicts(first) == [("R", 0)])
    lone.ledgers.held = True
    for sequence_id in (2, 0, 2, 4):  # each entry holds two messages
        send(first, sequence_id)
    assert verdicts(first) == [("R", 0)]
    first.leave()
    second = Client(lone.broker)
    produce(second, producer_name="me")
    await turns(lambda: topic.admission.dedup.current.core.is_settled("other"))  # type: ignore[union-attr]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.answer(T.PRODUCER_SUCCESS)  # only after the answer to the first producer's entry
    lone.ledgers.held = False
    for writer in lone.ledgers.writers.values():
        writer.release()
    await turns(lambda: second.answer(T.PRODUCER_SUCCESS))
    assert second.transport.answers[-1].producer_success.last_sequence_id == 5
    for sequence_id in (2, 4, 6):
        send(second, sequence_id)
    await turns(lambda: verdicts(second) == [("D", 2), ("D", 4), ("R", 6)])
    assert topic.ledger.chain.end == 4
    assert lone.broker._publish_budget.bytes == 0
    second.leave()


async def test_a_producer_that_waits_may_not_send(lone: LoneBroker) -> None:
    owner, other = Client(lone.broker), Client(lone.broker)
    produce(owner, producer_access_mode=pb.ACCESS_EXCLUSIVE)
    await turns(lambda: owner.answer(T.PRODUCER_SUCCESS))
    produce(other, producer_access_mode=pb.ACCESS_WAIT_FOR_EXCLUSIVE)
    await turns(lambda: other.answer(T.PRODUCER_SUCCESS))
    assert not other.transport.answers[-1].producer_success.producer_ready
    send(other, 0)
    assert other.transport.is_gone
    other.leave()
    topic = lone.broker.topics.find(TOPIC)
    assert topic is not None
    assert topic.admission.producers.access.waiting == []
    owner.leave()


async def test_a_client_is_not_read_while_bookies_lag() -> None:
    """I15: the bytes that are published and neither confirmed nor refused are bounded."""
    async with LoneBroker("orders", connection_publish_bytes_max=10 * (len(ENTRY) + PENDING_OVERHEAD_BYTES)) as lone:
        client = Client(lone.broker)
        produce(client)
        await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
        lone.ledgers.held = True
        for sequence_id in range(0, 22, 2):
            assert client.transport.is_read
            send(client, sequence_id)
        assert not client.transport.is_read
        lone.ledgers.held = False
        for writer in lone.ledgers.writers.values():
            writer.release()
        await turns(lambda: client.transport.is_read)
        await turns(lambda: len(verdicts(client)) == 11)
        client.leave()


async def test_the_receipt_of_a_lone_entry_leaves_at_once_and_others_leave_together(
    client: Client, lone: LoneBroker
) -> None:
    produce(client)
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    lone.ledgers.held = True
    for sequence_id in range(3):
        send(client, sequence_id)
    heard: list[list[tuple[str, int]]] = []
    real = client.connection.send_receipt

    def send_receipt(receipt: T) -> None:
        real(receipt)
        heard.append(verdicts(client))

    client.connection.send_receipt = send_receipt  # type: ignore[method-assign]
    lone.ledgers.held = False
    for writer in lone.ledgers.writers.values():
        writer.release()
    await turns(lambda: len(verdicts(client)) == 3)
    assert heard == [[], [], [("R", 0), ("R", 1), ("R", 2)]]


async def test_the_receipt_of_a_lone_entry_and_the_entry_for_a_consumer_of_the_same_client_are_one_write(
    client: Client,
) -> None:
    produce(client)
    wanted = pb.CommandSubscribe(topic=str(TOPIC), subscription="s", sub_type=0, consumer_id=1, request_id=2)  # type: ignore[arg-type]
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS) and client.answer(T.SUCCESS))
    client.say(T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=10)))
    writes: list[list[int]] = []
    write = client.transport.write

    def recorded(data: bytes | bytearray | memoryview) -> None:
        before = len(client.transport.answers)
        write(data)
        writes.append([command.type for command in client.transport.answers[before:]])

    client.transport.write = recorded  # type: ignore[method-assign]
    send(client, 0)
    await turns(lambda: client.answer(T.MESSAGE) and client.answer(T.SEND_RECEIPT))
    assert writes == [[T.SEND_RECEIPT, T.MESSAGE]]
    assert client.connection.has_consumers
    client.say(T(type=T.CLOSE_CONSUMER, close_consumer=pb.CommandCloseConsumer(consumer_id=1, request_id=3)))
    assert not client.connection.has_consumers


async def test_all_producers_of_a_broker_share_its_rate() -> None:
    async with LoneBroker("orders", publish_messages_per_second=10) as lone:
        client, other = Client(lone.broker), Client(lone.broker)
        produce(client)
        await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
        for sequence_id in range(0, 30, 2):
            send(client, sequence_id)
        assert client.connection.is_throttled
        assert not other.connection.is_throttled
        client.leave()
        other.leave()


async def test_all_producers_of_a_tenant_share_its_rate_and_other_tenants_have_theirs() -> None:
    async with LoneBroker("orders", tenant_publish_bytes_per_second=100) as lone:
        await lone.broker.admin.namespaces.create_tenant("acme")
        await lone.broker.admin.namespaces.create("acme/shop")
        await lone.broker.ownership.resolve(TopicName.parse("non-persistent://acme/shop/t"))
        client, same, other = (Client(lone.broker) for _ in range(3))
        for one, topic in ((client, "orders"), (same, "work-0"), (other, "non-persistent://acme/shop/t")):
            producer = pb.CommandProducer(topic=topic, producer_id=1, request_id=1)
            one.say(T(type=T.PRODUCER, producer=producer))
            await asyncio.gather(*one.connection._tasks)
            assert one.answer(T.PRODUCER_SUCCESS), one.transport.answers
        for sequence_id in range(0, 600, 2):  # minutes of the tenant's rate
            send(client, sequence_id)
        assert client.connection.is_throttled
        send(same, 0)
        assert same.connection.is_throttled, "it is the tenant's rate that was used up"
        send(other, 0)
        assert not other.connection.is_throttled
        await lone.broker.admin.settings.set("tenant_publish_bytes_per_second", "0")
        await turns(lambda: not lone.broker._publish_budget.is_rated)
        for one in (client, same, other):
            one.leave()


async def test_a_throttled_client_is_sent_signs_of_life(client: Client, lone: LoneBroker) -> None:
    produce(client)
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    topic = lone.broker.topics.find(TOPIC)
    assert topic is not None
    topic.apply_policies(replace(topic.policies, publish_messages_per_second=1))
    for sequence_id in range(0, 100, 2):
        send(client, sequence_id)
    assert client.connection.is_throttled
    client.connection._tick()
    await turns(lambda: client.transport.answers[-1].type == T.PONG)


@pytest.mark.slow
async def test_there_is_a_limit_on_connections_and_it_holds() -> None:
    async with LoneBroker(connections_max=10_000, connections_per_address_max=10_000) as lone:
        clients = [Client(lone.broker) for _ in range(10_000)]
        await turns(lambda: all(client.answer(T.CONNECTED) for client in clients))
        one_more = Client(lone.broker)
        assert one_more.transport.is_gone
        one_more.leave()
        clients.pop().leave()
        await lone.work()
        for client in clients:
            client.leave()
        assert lone.broker.statistics()["connections"] == 0


async def test_a_producer_id_that_is_used_again_ends_its_former_producer(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    produce(client)
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    produce(client, epoch=1)
    await turns(lambda: sum(answer.type == T.PRODUCER_SUCCESS for answer in client.transport.answers) == 2)
    topic = lone.broker.topics.find(TOPIC)
    assert topic is not None
    assert len(topic.producers) == 1
    client.leave()
    assert not topic.producers


async def test_a_producer_of_dead_letters_brings_a_subscription_that_gets_them_all(
    client: Client, lone: LoneBroker
) -> None:
    produce(client)
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    send(client, 0)
    await turns(lambda: client.answer(T.SEND_RECEIPT))
    topic = lone.broker.topics.find(TOPIC)
    assert topic is not None
    for producer_id in (2, 3):  # once is enough
        produce(client, producer_id, initial_subscription_name="letters")
    await turns(lambda: sum(answer.type == T.PRODUCER_SUCCESS for answer in client.transport.answers) == 3)
    assert topic.subscriptions["letters"].backlog == 1
    topic.apply_policies(replace(topic.policies, auto_create_subscriptions=False))
    produce(client, 4, initial_subscription_name="other")
    await turns(lambda: client.answer(T.ERROR))
    assert client.transport.answers[-1].error.error == pb.NOT_ALLOWED_ERROR
    assert set(topic.subscriptions) == {"letters"}


@pytest.mark.parametrize("looks", [0, 1])
async def test_a_producer_whose_client_leaves_at_once_does_not_count_for_its_role(lone: LoneBroker, looks: int) -> None:
    client = Client(lone.broker)
    await turns(lambda: client.answer(T.CONNECTED))
    client.connection.count_role("r")
    produce(client)
    for _ in range(looks):
        await asyncio.sleep(0)
    client.leave()
    await turns(lambda: not client.connection._tasks)
    assert lone.broker._context is not None
    assert lone.broker._context.producers_of_roles["r"] == 0


async def producers_of(lone: LoneBroker, client: Client, word: str, count: int) -> None:
    """Ask for producers of topics that the broker owns and has not opened."""
    topics = [f"{word}-{number}" for number in range(count)]
    for topic in topics:
        await lone.broker.ownership.resolve(TopicName.parse(topic))
    for number, topic in enumerate(topics):
        client.say(T(type=T.PRODUCER, producer=pb.CommandProducer(topic=topic, producer_id=number, request_id=number)))


def opened(client: Client) -> int:
    return sum(answer.type == T.PRODUCER_SUCCESS for answer in client.transport.answers)


async def test_a_client_with_few_topics_comes_between_those_of_one_with_many() -> None:
    async with LoneBroker() as lone:
        many, few = Client(lone.broker), Client(lone.broker)
        await producers_of(lone, many, "many", 5 * OPENINGS_MAX)
        await producers_of(lone, few, "few", 1)
        await turns(lambda: opened(few) > 0)
        assert opened(many) <= 2 * OPENINGS_MAX
        await turns(lambda: opened(many) == 5 * OPENINGS_MAX)


async def test_the_first_message_is_read_while_other_topics_of_its_client_wait_to_be_opened() -> None:
    async with LoneBroker(connection_requests_max=2 * OPENINGS_MAX) as lone:
        client = Client(lone.broker)
        await producers_of(lone, client, "many", 5 * OPENINGS_MAX)
        assert not client.transport.is_read, "the commands have not begun to wait"
        await turns(lambda: opened(client) > 0)
        assert client.transport.is_read
        client.leave()
        await turns(lambda: not client.connection._tasks)
        assert lone.broker._context is not None
        assert lone.broker._context.openings_waiting == 0


async def test_a_topic_that_does_not_open_keeps_no_other_topic_of_its_client_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with LoneBroker() as lone:
        client, topics, stuck = Client(lone.broker), lone.broker._context.topics, TopicName.parse("stuck")  # type: ignore[union-attr]
        real, opens = topics._open, asyncio.Event()

        async def open_later(name: TopicName, *others: Any) -> Any:
            if name == stuck:
                await opens.wait()
            return await real(name, *others)

        monkeypatch.setattr(topics, "_open", open_later)
        for topic in (stuck, TopicName.parse("other")):
            await lone.broker.ownership.resolve(topic)
        for number in range(OPENINGS_MAX):
            producer = pb.CommandProducer(topic="stuck", producer_id=number, request_id=number)
            client.say(T(type=T.PRODUCER, producer=producer))
        other = pb.CommandProducer(topic="other", producer_id=OPENINGS_MAX, request_id=OPENINGS_MAX)
        client.say(T(type=T.PRODUCER, producer=other))
        try:
            await turns(lambda: opened(client) > 0)
            assert client.transport.answers[-1].producer_success.request_id == OPENINGS_MAX
        finally:
            opens.set()
        await turns(lambda: opened(client) == OPENINGS_MAX + 1)

"""LOOKUP, PARTITIONED_METADATA and GET_TOPICS_OF_NAMESPACE, question by question."""

from __future__ import annotations

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from heliograph.protocol.topics_pattern import topics_hash
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns

COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign"


async def ask(client: Client, command: pb.BaseCommand) -> pb.BaseCommand:
    await turns(lambda: client.answer(T.CONNECTED))
    before = len(client.transport.answers)
    client.say(command)
    await turns(lambda: len(client.transport.answers) > before)
    return client.transport.answers[before]


async def lookup(client: Client, topic: str) -> pb.CommandLookupResponse:
    command = T(type=T.LOOKUP, lookup=pb.CommandLookup(topic=topic, request_id=1))
    return (await ask(client, command)).lookup_response


async def partitions(client: Client, topic: str, *, auto_creation: bool) -> pb.CommandPartitionedMetadataResponse:
    wanted = pb.CommandPartitionedMetadata(topic=topic, request_id=1, auto_creation=auto_creation)
    command = T(type=T.PARTITIONED_METADATA, partitioned_metadata=wanted)
    return (await ask(client, command)).partitioned_metadata_response


async def topics(client: Client, namespace: str, pattern: str = "", known: str = "") -> pb.BaseCommand:
    wanted = pb.CommandGetTopicsOfNamespace(request_id=1, namespace=namespace)
    if pattern:
        wanted.topics_pattern = pattern
    if known:
        wanted.topics_hash = known
    return await ask(client, T(type=T.GET_TOPICS_OF_NAMESPACE, get_topics_of_namespace=wanted))


async def test_partitions_are_asked_for_without_creating_the_topic(client: Client, lone: LoneBroker) -> None:
    """PIP-344: the Java client asks so whether an older name of a retry or dead letter topic is in use."""
    await turns(lambda: client.answer(T.CONNECTED))
    connected = client.transport.answers[0].connected
    assert connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation
    catalog = lone.broker._catalog
    answer = await partitions(client, "nowhere", auto_creation=False)
    assert (answer.response, answer.error) == (answer.FAILED, pb.TOPIC_NOT_FOUND)
    assert not await catalog.exists(TopicName.parse("nowhere"))
    await catalog.create(TopicName.parse("many"), 3)
    for name, number in (("many", 3), ("orders", 0)):
        answer = await partitions(client, name, auto_creation=False)
        assert (answer.response, answer.partitions) == (answer.SUCCESS, number)


async def test_a_client_that_asks_while_a_topic_is_deleted_asks_again_and_makes_it_anew(lone: LoneBroker) -> None:
    """TOPIC_NOT_FOUND is final for stock clients: a producer that reconnects in that moment would never come back."""
    client, catalog, many = Client(lone.broker), lone.broker._catalog, TopicName.parse("many")
    await catalog.create(many, 2)
    await catalog.mark_deleting(many)
    answer = await partitions(client, "many", auto_creation=True)
    assert (answer.response, answer.error) == (answer.FAILED, pb.METADATA_ERROR)
    [first, _] = many.partitions(2)
    await lone.broker._store.delete(catalog.topic_path(first))
    assert (await lookup(client, str(first))).response == pb.CommandLookupResponse.CONNECT
    producer = pb.CommandProducer(topic=str(first), producer_id=1, request_id=1)
    assert (await ask(client, T(type=T.PRODUCER, producer=producer))).error.error == pb.SERVICE_NOT_READY
    await lone.broker.admin.delete_topic("many", True)
    answer = await partitions(client, "many", auto_creation=True)
    assert (answer.response, answer.partitions) == (answer.SUCCESS, 0)
    assert (await ask(client, T(type=T.PRODUCER, producer=producer))).error.error == pb.TOPIC_NOT_FOUND
    producer.topic = "many"
    assert (await lookup(client, "many")).response == pb.CommandLookupResponse.CONNECT
    assert (await ask(client, T(type=T.PRODUCER, producer=producer))).type == T.PRODUCER_SUCCESS
    client.leave()


async def test_a_namespace_that_does_not_exist_has_no_topics(client: Client) -> None:
    answer = await topics(client, "nobody/nothing")
    assert answer.type == T.GET_TOPICS_OF_NAMESPACE_RESPONSE
    assert not answer.get_topics_of_namespace_response.topics
    assert (await topics(client, "public")).error.error == pb.NOT_ALLOWED_ERROR


async def test_patterns_see_names_without_domain_and_partition(client: Client, lone: LoneBroker) -> None:
    await lone.broker._catalog.create(TopicName.parse("many"), 2)
    answer = await topics(client, "public/default", "persistent://public/default/(many|orders)")
    found = answer.get_topics_of_namespace_response
    names = [f"persistent://public/default/{name}" for name in ("many-partition-0", "many-partition-1", "orders")]
    assert (list(found.topics), found.filtered, found.changed) == (names, True, True)
    again = await topics(client, "public/default", "public/default/(many|orders)", found.topics_hash)
    assert not again.get_topics_of_namespace_response.changed
    assert not again.get_topics_of_namespace_response.topics


async def test_a_pattern_that_is_not_supported_is_left_to_the_client(client: Client) -> None:
    for pattern in ("public/default/(?!orders).*", "x" * 1_001, "(["):
        answer = (await topics(client, "public/default", pattern)).get_topics_of_namespace_response
        assert not answer.filtered
        assert "persistent://public/default/orders" in answer.topics


def test_the_hash_of_topics_is_the_one_that_clients_compute() -> None:
    """The values are those of the Java client's ``TopicList.calculateHash``."""
    assert topics_hash([]) == "00000000"
    assert topics_hash(["persistent://public/default/b", "persistent://public/default/a"]) == "c7559e98"


async def test_a_client_with_transactions_is_told_that_there_are_none(lone: LoneBroker) -> None:
    go, client = Client(lone.broker, "Pulsar-Go-0.19.0"), Client(lone.broker)
    answer = await partitions(go, COORDINATOR, auto_creation=True)
    assert (answer.response, answer.partitions) == (answer.SUCCESS, 0)
    go.leave()
    answer = await partitions(client, COORDINATOR, auto_creation=True)
    assert (answer.response, answer.error) == (answer.FAILED, pb.NOT_ALLOWED_ERROR)
    assert "transactions are not offered" in answer.message
    for name in (COORDINATOR, f"{COORDINATOR}-partition-0"):
        found = await lookup(client, name)
        assert (found.response, found.error) == (found.FAILED, pb.NOT_ALLOWED_ERROR)
        assert "transactions are not offered" in found.message
    command = T(type=T.TC_CLIENT_CONNECT_REQUEST, tc_client_connect_request=pb.TransactionRequest(request_id=4))
    refusal = (await ask(client, command)).tc_client_connect_response
    assert (refusal.request_id, refusal.error) == (4, pb.NOT_ALLOWED_ERROR)
    assert "transactions are not offered" in refusal.message
    client.leave()


async def test_a_lookup_while_a_bundle_changes_its_owner_does_not_make_the_client_hang_up(
    client: Client, lone: LoneBroker
) -> None:
    """Clients close the whole connection on SERVICE_NOT_READY."""
    ownership = lone.broker.ownership
    assert all(ownership.begin_release(path) for path in ownership.owned)
    answer = await lookup(client, "orders")
    assert (answer.response, answer.error) == (answer.FAILED, pb.METADATA_ERROR)
    assert "is changing its owner" in answer.message

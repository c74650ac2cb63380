"""Schemas with the stock Pulsar client: registered by producers, checked at both ends, looked up by older readers."""

from __future__ import annotations

import pulsar
import pytest
from pulsar import schema

from tests.cluster.support.broker_cluster import BrokerCluster, wait_for

EARLIEST = pulsar.InitialPosition.Earliest
RECEIVE_MS = 60_000


class Order(schema.Record):  # type: ignore[misc]  # the client has no types
    number = schema.Integer(required=True)
    buyer = schema.String()


class OrderWithPrice(schema.Record):  # type: ignore[misc]
    number = schema.Integer(required=True)
    buyer = schema.String()
    price = schema.Double(required_default=True)


OrderWithPrice.__name__ = "Order"


class Payment(schema.Record):  # type: ignore[misc]
    account = schema.String(required=True)


Payment.__name__ = "Order"


@pytest.mark.parametrize("kind", [schema.AvroSchema, schema.JsonSchema])
def test_records_travel_with_their_schema(client: pulsar.Client, kind: type[schema.Schema]) -> None:
    topic = f"orders-{kind.__name__}"
    consumer = client.subscribe(topic, "sub", schema=kind(Order), initial_position=EARLIEST)
    producer = client.create_producer(topic, schema=kind(Order))
    producer.send(Order(number=7, buyer="ada"))
    message = consumer.receive(RECEIVE_MS)
    assert (message.value().number, message.value().buyer) == (7, "ada")
    grown = client.create_producer(topic, schema=kind(OrderWithPrice))
    grown.send(OrderWithPrice(number=8, buyer="bob", price=1.5))
    assert consumer.receive(RECEIVE_MS).value().number == 8


def test_what_does_not_follow_the_schema_is_refused(client: pulsar.Client) -> None:
    client.create_producer("fixed", schema=schema.AvroSchema(Order)).send(Order(number=1, buyer="x"))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("fixed", schema=schema.AvroSchema(Payment))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("fixed", schema=schema.StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe("fixed", "sub", schema=schema.JsonSchema(Order))
    client.create_producer("fixed").send(b"bytes are let in where no validation is asked for")


def test_the_policy_on_compatibility_acts_on_a_loaded_topic(cluster: BrokerCluster, client: pulsar.Client) -> None:
    payments = schema.AvroSchema(Payment)
    client.create_producer("loose", schema=schema.AvroSchema(Order)).send(Order(number=1, buyer="x"))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("loose", schema=payments)
    cluster.run(cluster.admin.namespaces.set_topic_policies("loose", {"schema_compatibility": "ALWAYS_COMPATIBLE"}))

    def is_let_in() -> bool:
        try:
            client.create_producer("loose", schema=payments).send(Payment(account="y"))
        except pulsar.IncompatibleSchema:
            return False
        return True

    wait_for(is_let_in, "the policy to act")


def test_partitions_share_one_schema(cluster: BrokerCluster, client: pulsar.Client) -> None:
    cluster.run(cluster.admin.create_topic("spread", 2))
    client.create_producer("spread", schema=schema.StringSchema()).send("one")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("spread-partition-1", schema=schema.AvroSchema(Order))


def test_a_consumer_with_a_schema_comes_before_the_first_producer(client: pulsar.Client) -> None:
    plain = client.subscribe("first", "audit", pulsar.ConsumerType.Shared)
    typed = client.subscribe("first", "work", schema=schema.AvroSchema(Order))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("first", schema=schema.AvroSchema(Payment))
    client.create_producer("first", schema=schema.AvroSchema(Order)).send(Order(number=7, buyer="ada"))
    assert typed.receive(RECEIVE_MS).value().number == 7
    assert plain.receive(RECEIVE_MS).data()


def test_a_consumer_with_a_schema_reads_a_topic_without_one_and_decides_nothing(client: pulsar.Client) -> None:
    client.create_producer("bytes", schema=schema.BytesSchema()).send(b"from before")
    consumer = client.subscribe("bytes", "sub", schema=schema.AvroSchema(Order), initial_position=EARLIEST)
    assert consumer.receive(RECEIVE_MS).data() == b"from before"
    client.create_producer("bytes", schema=schema.AvroSchema(Payment)).send(Payment(account="x"))

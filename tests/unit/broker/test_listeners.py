"""Advertised listeners: the setting, what the broker registers, and the addresses that a LOOKUP answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.listeners import LISTENERS_MAX, AdvertisedListener, filled_in, parse_listeners
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.base.errors import InvalidConfigError
from heliograph.metadata import codec
from heliograph.metadata.model import BrokerRegistration, BundleOwner
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import World, turns

SETTING = (
    "internal=pulsar://10.0.0.1:6650, external:pulsar://{broker_id}.example.org:{port},"
    "external=pulsar+ssl://{broker_id}.example.org:7651"
)


@pytest.fixture
async def lone() -> AsyncIterator[LoneBroker]:
    async with LoneBroker("orders", advertised_listeners=SETTING, internal_listener_name="internal") as running:
        yield running


async def lookup(client: Client, listener: str = "") -> pb.CommandLookupResponse:
    wanted = pb.CommandLookup(topic="orders", request_id=1)
    if listener:
        wanted.advertised_listener_name = listener
    before = sum(answer.type == T.LOOKUP_RESPONSE for answer in client.transport.answers)
    client.say(T(type=T.LOOKUP, lookup=wanted))
    await turns(lambda: sum(answer.type == T.LOOKUP_RESPONSE for answer in client.transport.answers) > before)
    return client.transport.answers[-1].lookup_response


async def test_a_lookup_answers_the_addresses_of_the_listener_that_is_asked_for(
    client: Client, lone: LoneBroker
) -> None:
    for name in ("", "internal"):
        answer = await lookup(client, name)
        assert (answer.url, answer.url_tls) == ("pulsar://10.0.0.1:6650", "")
    port = lone.broker._server.port
    answer = await lookup(client, "external")
    assert (answer.url, answer.url_tls) == (
        f"pulsar://lone.example.org:{port}",
        "pulsar+ssl://lone.example.org:7651",
    )
    [registered] = await lone.broker.ownership.brokers()
    assert registered.service_url == "pulsar://10.0.0.1:6650"
    assert lone.broker.service_url.endswith(f":{port}")  # the address that it listens on


async def test_an_unknown_listener_is_an_error(client: Client) -> None:
    answer = await lookup(client, "nowhere")
    assert (answer.response, answer.error) == (answer.FAILED, pb.NOT_ALLOWED_ERROR)
    assert "no listener named nowhere: it has internal, external" in answer.message


async def test_a_redirect_names_the_listener_of_the_other_broker() -> None:
    world, topic = World(), TopicName.parse("orders")
    owners = []
    for name in ("a", "b"):
        store = await world.session()
        listeners = f"external=pulsar://{name}.example.org:7650"
        registration = BrokerRegistration(name, f"pulsar://{name}:6650", name, listeners=listeners)
        ownership = Ownership(store, registration, Catalog(store).bundle_of)
        await ownership.start()
        owners.append(ownership)
    first = await owners[0].resolve(topic)  # one of them is told to take it
    owner = owners["ab".index(first.broker_id)]
    assert first.listeners == f"external=pulsar://{first.broker_id}.example.org:7650"
    await owner.resolve(topic, authoritative=True)
    for one in owners:
        assert (await one.resolve(topic)).listeners == first.listeners


def test_records_of_brokers_without_listeners_are_read() -> None:
    owner = BundleOwner("a", "pulsar://a:6650", "a")
    assert codec.decode(BundleOwner, codec.encode(owner)).listeners == ""


def test_forms() -> None:
    text = filled_in(SETTING, broker_id="b0", host="h", port=1, tls_port=None)
    assert parse_listeners(text) == {
        "internal": AdvertisedListener("pulsar://10.0.0.1:6650"),
        "external": AdvertisedListener("pulsar://b0.example.org:1", "pulsar+ssl://b0.example.org:7651"),
    }
    assert parse_listeners("v6=pulsar://[::1]:6650")["v6"].url == "pulsar://[::1]:6650"
    assert parse_listeners("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "pulsar://a:6650", "a=http://a:6650", "a=pulsar://a", "a=pulsar://a:0", "a=pulsar://a:70000", "a=pulsar://:1",
        "a=pulsar://a:1,a=pulsar://b:2", "a b=pulsar://a:1", "a=pulsar://{unknown}:1",
        ",".join(f"n{number}=pulsar://a:1" for number in range(LISTENERS_MAX + 1)),
    ],
)  # fmt: skip
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        BrokerConfig("b", advertised_listeners=text)
    assert raised.value.field == "advertised_listeners"


def test_the_internal_listener_is_one_of_the_listeners() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        BrokerConfig("b", advertised_listeners="a=pulsar://a:1", internal_listener_name="b")
    assert raised.value.field == "internal_listener_name"

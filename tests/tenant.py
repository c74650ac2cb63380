"""A hostile tenant with one right: it may produce to one topic, and tries everything else, and what costs the most.

``prepare`` as an administrator, ``attack`` as the tenant, and ``check_and_delete`` as an administrator again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from typing_extensions import override

import heliograph
from heliograph.base.errors import HeliographError, IncompatibleSchemaError
from heliograph.client.options import NAME_CHARACTERS_MAX
from heliograph.client.schemas.schema import Schema
from heliograph.operations.table import OPERATIONS, AdminOperation
from heliograph.protocol.schema import SchemaInfo, SchemaType
from heliograph.protocol.topic_name import LOCAL_NAME_BYTES_MAX
from tests.unit.auth.test_operations_matrix import arguments_of

ROLE = "mallory"
VICTIM, OWN = "persistent://public/default/victim", "persistent://public/default/own"
SUBSCRIPTION = "s"
SECRET = b"not for tenants"
TARGETS = {
    "tenant": "public", "name": SUBSCRIPTION, "namespace": "public/default", "topic": VICTIM,
    "subscription": SUBSCRIPTION,
}  # fmt: skip
UNION_RECORDS = 1_500
BOMB = "[" * 100_000
UNPACKED_BYTES = 4 << 20
PEEKS = 20


class GivenSchema(Schema[bytes]):
    """Bytes by a definition that nobody checks here."""

    def __init__(self, info: SchemaInfo) -> None:
        self._info = info

    @property
    @override
    def info(self) -> SchemaInfo:
        return self._info

    @override
    def encode(self, value: bytes) -> bytes:
        return value

    @override
    def decoder(self, written: SchemaInfo | None) -> Callable[[bytes], bytes]:
        return bytes


def prepare(admin: heliograph.Client) -> None:
    """Create both topics, with a message in the victim's, and give the tenant its right."""
    for topic in (VICTIM, OWN):
        admin.admin.create_topic(topic)
        admin.admin.create_subscription(topic, SUBSCRIPTION, "earliest")
    with admin.producer(VICTIM) as producer:
        producer.send(SECRET)
    admin.admin.permissions.grant_topic(OWN, ROLE, ["produce"])


def attack(service_url: str, token: str, **options: Any) -> None:
    """Try all of it as the tenant.

    Args:
        options: of ``heliograph.connect``, such as ``tls_ca_file``.
    """
    with heliograph.connect(service_url, token=token, **options) as mallory:
        with mallory.producer(OWN, compression="zlib") as producer:
            producer.send(bytes(UNPACKED_BYTES))
        gain_nothing(mallory)
        cost_much(mallory)


def gain_nothing(mallory: heliograph.Client) -> None:
    """Try every operation of the administration on another's topic, and to read, and names that are too long."""
    outcomes = {name: tried(mallory, entry) for name, entry in OPERATIONS.items()}
    assert outcomes.pop("list_topics") in ("NotPermittedError", "[]", f"['{OWN}']", f'["{OWN}"]')
    gained = {name: what for name, what in outcomes.items() if what != "NotPermittedError"}
    assert not gained, gained
    for open_one in (
        lambda: mallory.producer(VICTIM).send(b"2"),
        lambda: mallory.consumer(VICTIM, SUBSCRIPTION).receive(1),
        lambda: mallory.consumer(OWN, "mine").receive(1),
        lambda: mallory.reader(VICTIM, "earliest").receive(1),
        lambda: mallory.producer(f"{OWN}-{'n' * 250}").send(b"2"),
        lambda: mallory.producer(f"persistent://public/default/{'n' * LOCAL_NAME_BYTES_MAX}").send(b"2"),
        lambda: mallory.producer(OWN, name="n" * 2_000).send(b"2"),
    ):
        with pytest.raises(HeliographError):
            open_one()


def tried(client: heliograph.Client, entry: AdminOperation) -> str:
    """Return what an operation on what is another's answers, or the class of its error."""
    given = {name: each for name, each in arguments_of(entry).items() if name not in TARGETS}
    given |= {name: value for name, value in TARGETS.items() if name in entry.signature.parameters}
    group: Any = getattr(client.admin, entry.group) if entry.group else client.admin
    try:
        return repr(getattr(group, entry.method_name)(**given))
    except HeliographError as error:
        return type(error).__name__


def cost_much(mallory: heliograph.Client) -> None:
    """Do what the one right allows and what costs the cluster most: names of the longest, schemas, JSON."""
    with mallory.producer(OWN, name="n" * NAME_CHARACTERS_MAX) as producer:
        producer.send(b"2")
    with mallory.producer(OWN, schema=GivenSchema(union("a"))) as producer:
        producer.send(b"")
    with pytest.raises(IncompatibleSchemaError), mallory.producer(OWN, schema=GivenSchema(union("b"))) as producer:
        producer.send(b"")
    for kind in ("AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE"):
        with pytest.raises(HeliographError):
            mallory.admin.schemas.put(OWN, {"type": kind, "schema": BOMB})
        with suppress(HeliographError):
            assert not mallory.admin.schemas.check(OWN, {"type": kind, "schema": BOMB})["compatibility"]


def union(name: str) -> SchemaInfo:
    """Return a record with a union of records, each of which has a field that no other has."""
    types = [
        {"type": "record", "name": f"{name}{number}", "fields": [{"name": f"{name}{number}", "type": "int"}]}
        for number in range(UNION_RECORDS)
    ]
    definition = {"type": "record", "name": "R", "fields": [{"name": "u", "type": types}]}
    return SchemaInfo(SchemaType.AVRO, json.dumps(definition).encode())


def check_and_delete(admin: heliograph.Client) -> None:
    """Peek at what the tenant sent, see that nothing of others has changed, and delete all that is left."""
    for _ in range(PEEKS):
        assert len(admin.admin.cursors.peek(OWN, SUBSCRIPTION)) == 1
    listed = repr(admin.admin.list_topics("public/default"))
    assert VICTIM in listed
    assert OWN in listed
    assert admin.admin.subscriptions(OWN) == [SUBSCRIPTION]
    with admin.consumer(VICTIM, SUBSCRIPTION) as consumer:
        assert consumer.receive(60).value == SECRET
    for topic in (VICTIM, OWN):
        admin.admin.delete_topic(topic, force=True)
    listed = repr(admin.admin.list_topics("public/default"))
    assert VICTIM not in listed
    assert OWN not in listed

"""The schema registry, with metadata in memory: versions, compatibility by strategy, deletion."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.broker.schema.compatibility import check_compatible, check_definition
from heliograph.actors.broker.schema.registry import SchemaNotFoundError, SchemaRegistry
from heliograph.base.errors import BadRequestError, IncompatibleSchemaError
from heliograph.client.schemas.decoding import plain_decoder
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.model import Policies
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import Operation, Stat
from heliograph.protocol.schema import (
    SCHEMA_BYTES_MAX,
    SchemaInfo,
    SchemaType,
    check_size,
    from_wire,
    to_wire,
    version_of,
)
from heliograph.protocol.topic_name import TopicName

TOPIC = TopicName.parse("orders")
POLICIES = Policies()
NEEDED: dict[str, Any] = {"name": "b", "type": "int"}
DOCUMENTS = st.recursive(st.text() | st.integers(), st.lists).map(lambda value: json.dumps(value).encode())
OPTIONAL: dict[str, Any] = {"name": "b", "type": "int", "default": 0}


def avro(*fields: dict[str, Any], kind: SchemaType = SchemaType.AVRO) -> SchemaInfo:
    definition = {"type": "record", "name": "Order", "fields": [{"name": "a", "type": "string"}, *fields]}
    return SchemaInfo(kind, json.dumps(definition).encode(), "Order")


def protobuf(*fields: tuple[int, FieldDescriptorProto.Type.ValueType], required: int = 0) -> SchemaInfo:
    message = DescriptorProto(name="Order")
    for number, kind in fields:
        label = FieldDescriptorProto.LABEL_REQUIRED if number == required else FieldDescriptorProto.LABEL_OPTIONAL
        message.field.append(FieldDescriptorProto(name=f"f{number}", number=number, type=kind, label=label))
    files = FileDescriptorSet(file=[FileDescriptorProto(name="o.proto", package="shop", message_type=[message])])
    encoded = base64.b64encode(files.SerializeToString()).decode()
    definition = {"fileDescriptorSet": encoded, "rootMessageTypeName": "shop.Order"}
    return SchemaInfo(SchemaType.PROTOBUF_NATIVE, json.dumps(definition).encode())


def key_value(key: bytes, value: bytes) -> SchemaInfo:
    data = struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    return SchemaInfo(SchemaType.KEY_VALUE, data, "", {"key.schema.type": "STRING", "value.schema.type": "AVRO"})


# reader gains a field: (fields of the old, fields of the new, strategies that allow the new one)
CASES = [
    ([], [OPTIONAL], {"BACKWARD", "FORWARD", "FULL"}),
    ([], [NEEDED], {"FORWARD"}),
    ([NEEDED], [], {"BACKWARD"}),
    ([OPTIONAL], [], {"BACKWARD", "FORWARD", "FULL"}),
    ([NEEDED], [{"name": "b", "type": "long"}], {"BACKWARD"}),
    ([NEEDED], [{"name": "b", "type": "string"}], set()),
]


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF])
@pytest.mark.parametrize(("old", "new", "allowed"), CASES)
def test_strategies_decide_what_may_follow(
    old: list[dict[str, Any]], new: list[dict[str, Any]], allowed: set[str], kind: SchemaType
) -> None:
    for strategy in ("BACKWARD", "FORWARD", "FULL"):
        if strategy in allowed:
            check_compatible(avro(*new, kind=kind), [avro(*old, kind=kind)], strategy)
        else:
            with pytest.raises(IncompatibleSchemaError, match="not compatible"):
                check_compatible(avro(*new, kind=kind), [avro(*old, kind=kind)], strategy)
    check_compatible(avro(*new, kind=kind), [avro(*old, kind=kind)], "ALWAYS_COMPATIBLE")
    with pytest.raises(IncompatibleSchemaError, match="fixed"):
        check_compatible(avro(*new, kind=kind), [avro(*old, kind=kind)], "ALWAYS_INCOMPATIBLE")


def test_only_transitive_strategies_look_further_back_than_the_latest() -> None:
    versions = [avro(NEEDED), avro(OPTIONAL)]
    newest = avro({"name": "b", "type": ["int", "null"], "default": 0})
    check_compatible(newest, versions, "BACKWARD_TRANSITIVE")
    grown = [avro(), avro(OPTIONAL)]
    check_compatible(avro(NEEDED), grown, "BACKWARD")
    with pytest.raises(IncompatibleSchemaError):
        check_compatible(avro(NEEDED), grown, "BACKWARD_TRANSITIVE")


def test_the_type_of_a_topic_stays() -> None:
    with pytest.raises(IncompatibleSchemaError, match="AVRO"):
        check_compatible(SchemaInfo(SchemaType.STRING), [avro()], "FULL")
    check_compatible(SchemaInfo(SchemaType.STRING), [SchemaInfo(SchemaType.STRING)], "FULL")
    check_compatible(SchemaInfo(SchemaType.STRING), [avro()], "ALWAYS_COMPATIBLE")


def test_protobuf_goes_by_field_numbers() -> None:
    numbers = FieldDescriptorProto
    old = protobuf((1, numbers.TYPE_STRING), (2, numbers.TYPE_INT32))
    check_compatible(protobuf((1, numbers.TYPE_BYTES), (2, numbers.TYPE_INT64)), [old], "FULL")
    check_compatible(protobuf((1, numbers.TYPE_STRING), (3, numbers.TYPE_DOUBLE)), [old], "FULL")
    with pytest.raises(IncompatibleSchemaError, match="changes its type"):
        check_compatible(protobuf((1, numbers.TYPE_STRING), (2, numbers.TYPE_STRING)), [old], "BACKWARD")
    with pytest.raises(IncompatibleSchemaError, match="required"):
        check_compatible(protobuf((3, numbers.TYPE_STRING), required=3), [old], "BACKWARD")
    check_compatible(protobuf((3, numbers.TYPE_STRING), required=3), [old], "FORWARD")


def test_key_and_value_are_compared_apart() -> None:
    old = key_value(b"", avro().data)
    check_compatible(key_value(b"", avro(OPTIONAL).data), [old], "FULL")
    with pytest.raises(IncompatibleSchemaError, match="value: "):
        check_compatible(key_value(b"", avro(NEEDED).data), [old], "BACKWARD")


@pytest.mark.parametrize(
    "schema",
    [
        SchemaInfo(SchemaType.AVRO, b"{"),
        SchemaInfo(SchemaType.JSON, b'{"type": "record"}'),
        SchemaInfo(SchemaType.AVRO, b'{"a":' * 200 + b"1" + b"}" * 200),
        SchemaInfo(SchemaType.PROTOBUF_NATIVE, b"{}"),
        SchemaInfo(SchemaType.PROTOBUF_NATIVE, b'{"fileDescriptorSet": "", "rootMessageTypeName": "x"}'),
        SchemaInfo(SchemaType.KEY_VALUE, b"\0\0\1\0"),
        SchemaInfo(SchemaType.AUTO_CONSUME),
    ],
)
def test_malformed_definitions_are_refused(schema: SchemaInfo) -> None:
    with pytest.raises(IncompatibleSchemaError):
        check_definition(schema)


@given(
    kind=st.sampled_from([SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF_NATIVE, SchemaType.KEY_VALUE]),
    data=st.binary(max_size=200) | DOCUMENTS,
)
def test_no_bytes_break_the_check_of_a_definition(kind: SchemaType, data: bytes) -> None:
    try:
        check_definition(SchemaInfo(kind, data))
    except IncompatibleSchemaError:
        return


async def new_registry() -> SchemaRegistry:
    store = MemoryServer().open_session()
    await initialise(store)
    return SchemaRegistry(store)


async def test_versions_are_kept_and_found_again() -> None:
    registry = await new_registry()
    assert not await registry.has_schema(TOPIC)
    assert await registry.add(TOPIC, avro(), POLICIES) == 0
    assert await registry.add(TOPIC.of_partition(3), avro(OPTIONAL), POLICIES) == 1
    spaced = replace(avro(), data=json.dumps(json.loads(avro().data), indent=2).encode())
    assert await registry.add(TOPIC, spaced, POLICIES) == 0, "spaces make no version"
    assert (await registry.get(TOPIC)).version == 1
    assert (await registry.get(TOPIC, 0)).schema == avro()
    assert [stored.version for stored in await registry.versions(TOPIC)] == [0, 1]
    assert await registry.version_of(TOPIC, avro(OPTIONAL)) == 1
    with pytest.raises(SchemaNotFoundError):
        await registry.get(TOPIC, 7)
    with pytest.raises(IncompatibleSchemaError):
        await registry.add(TOPIC, avro(NEEDED, {"name": "c", "type": "int"}), POLICIES)


OLD_DEFAULTS = ["NaN", "-Infinity", "1e999", "1" * 30, '"\\ud800"']


@pytest.mark.parametrize("default", OLD_DEFAULTS)
async def test_a_definition_that_was_stored_before_there_were_limits_stays_in_use(
    monkeypatch: pytest.MonkeyPatch, default: str
) -> None:
    kind = '"string"' if default.startswith('"') else '"double"'
    field = '{"name": "x", "type": %s, "default": %s}' % (kind, default)  # noqa: UP031
    text = avro(OPTIONAL).data.decode()
    old = SchemaInfo(SchemaType.AVRO, text.replace('"fields": [', f'"fields": [{field}, ').encode(), "Order")
    registry = await new_registry()
    with monkeypatch.context() as before:
        before.setattr("heliograph.actors.broker.schema.registry.check_definition", lambda schema: None)
        assert await registry.add(TOPIC, old, POLICIES) == 0
    assert await registry.add(TOPIC, old, POLICIES) == 0, "its producers come again"
    await registry.check(TOPIC, old, POLICIES)
    await registry.check_consumer(TOPIC, old, POLICIES)
    assert (await registry.get(TOPIC)).schema.data == old.data
    plain_decoder(old, old)
    later = avro(OPTIONAL, {"name": "c", "type": "int", "default": 0})
    assert await registry.add(TOPIC, later, POLICIES) == 1, "it is compared with the others"
    with pytest.raises(IncompatibleSchemaError):
        await registry.add(TOPIC, SchemaInfo(old.type, old.data.replace(b'"a"', b'"z"'), old.name), POLICIES)


async def test_a_deleted_schema_does_not_restrict_later_ones() -> None:
    registry = await new_registry()
    await registry.add(TOPIC, avro(), POLICIES)
    assert await registry.delete(TOPIC) == 1
    assert not await registry.has_schema(TOPIC)
    for version in (None, 0, 1):
        with pytest.raises(SchemaNotFoundError):
            await registry.get(TOPIC, version)
    with pytest.raises(SchemaNotFoundError):
        await registry.delete(TOPIC)
    assert await registry.add(TOPIC, SchemaInfo(SchemaType.INT64), POLICIES) == 2
    await registry.forget(TOPIC)
    assert await registry.add(TOPIC, avro(), POLICIES) == 0


async def test_a_history_of_many_versions_is_deleted_in_transactions_that_every_store_takes() -> None:
    registry = await new_registry()
    policies = replace(POLICIES, schema_compatibility="ALWAYS_COMPATIBLE")
    for number in range(60):
        await registry.add(TOPIC, avro({"name": f"f{number}", "type": "int"}), policies)
    sizes, multi = [], registry._store.multi

    async def noted(operations: Sequence[Operation]) -> list[str | Stat | None]:
        sizes.append(len(operations))
        return await multi(operations)

    registry._store.multi = noted  # type: ignore[method-assign]
    await registry.forget(TOPIC)
    assert (max(sizes), sum(sizes)) == (26, 64)
    assert not await registry.has_schema(TOPIC)
    assert await registry.add(TOPIC, avro(), policies) == 0
    assert await registry.add(TOPIC, avro(NEEDED), policies) == 1, "no definition is left in its place"


async def test_many_brokers_adding_one_schema_make_one_version() -> None:
    server = MemoryServer()
    first = server.open_session()
    await initialise(first)
    registries = [SchemaRegistry(first), *(SchemaRegistry(server.open_session()) for _ in range(4))]
    versions = await asyncio.gather(*(registry.add(TOPIC, avro(), POLICIES) for registry in registries))
    assert versions == [0] * 5
    assert len(await registries[0].versions(TOPIC)) == 1


async def test_producers_may_be_kept_from_changing_it() -> None:
    registry = await new_registry()
    fixed = replace(POLICIES, schema_auto_update=False)
    assert await registry.add(TOPIC, avro(), fixed) == 0
    with pytest.raises(IncompatibleSchemaError, match="may not change"):
        await registry.add(TOPIC, avro(OPTIONAL), fixed)
    assert await registry.add(TOPIC, avro(OPTIONAL), fixed, is_admin=True) == 1


async def test_consumers_are_checked_and_add_nothing() -> None:
    registry = await new_registry()
    await registry.check_consumer(TOPIC, avro(), POLICIES)
    assert not await registry.has_schema(TOPIC)
    await registry.add(TOPIC, avro(), POLICIES)
    await registry.check_consumer(TOPIC, avro(OPTIONAL), POLICIES)
    with pytest.raises(IncompatibleSchemaError):
        await registry.check_consumer(TOPIC, SchemaInfo(SchemaType.STRING), POLICIES)
    assert len(await registry.versions(TOPIC)) == 1


def test_the_wire_form_and_its_limits() -> None:
    schema = replace(avro(), properties={"a": "b"})
    assert from_wire(to_wire(schema)) == schema
    for field, large in {
        "schema": SchemaInfo(SchemaType.AVRO, b"x" * (SCHEMA_BYTES_MAX + 1)),
        "name": replace(schema, name="ü" * 600),
        "properties": replace(schema, properties={"a": "x" * (64 << 10)}),
    }.items():
        with pytest.raises(BadRequestError, match="bytes") as refused:
            check_size(large)
        assert (refused.value.field, bool(refused.value.limit)) == (field, True)
    with pytest.raises(BadRequestError):
        version_of(b"1")
    with pytest.raises(BadRequestError, match="no schema type"):
        SchemaType.named("XML")
    assert SchemaType.named("BYTES") is SchemaType.NONE

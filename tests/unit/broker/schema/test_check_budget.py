"""Schemas that are costly to check: each ends in a named error, in bounded time of a thread, and the loop goes on."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from heliograph.actors.broker.limits import unpacking
from heliograph.actors.broker.schema import check_budget
from heliograph.actors.broker.schema.check_budget import CheckBudget, SchemaChecks, SchemaTooComplexError
from heliograph.actors.broker.schema.compatibility import check_compatible, check_definition
from heliograph.actors.broker.schema.registry import SchemaRegistry
from heliograph.base.errors import HeliographError, IncompatibleSchemaError, QuotaExceededError
from heliograph.base.guard.shares import UnpackBudget
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.model import Policies
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.protocol.schema import SchemaInfo, SchemaType
from heliograph.protocol.topic_name import TopicName

TOPIC = TopicName.parse("orders")


def avro(definition: Any) -> SchemaInfo:
    return SchemaInfo(SchemaType.AVRO, json.dumps(definition).encode())


def union(name: str, records: int) -> SchemaInfo:
    """A record with a union of records, each with a field that it shares with no other."""
    fields = [{"name": f"{name}{number}", "type": "int"} for number in range(records)]
    types = [{"type": "record", "name": f"{name}{number}", "fields": [fields[number]]} for number in range(records)]
    return avro({"type": "record", "name": "R", "fields": [{"name": "u", "type": types}]})


def chain(messages: int) -> SchemaInfo:
    """Messages of protobuf, each of which has the next one in it."""
    field = FieldDescriptorProto(
        name="next", number=1, type=FieldDescriptorProto.TYPE_MESSAGE, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    found = [DescriptorProto(name=f"M{number}", field=[field]) for number in range(messages)]
    for number, message in enumerate(found):
        message.field[0].type_name = f".M{(number + 1) % messages}"
    files = FileDescriptorSet(file=[FileDescriptorProto(name="m.proto", message_type=found)])
    encoded = base64.b64encode(files.SerializeToString()).decode()
    return SchemaInfo(
        SchemaType.PROTOBUF_NATIVE,
        json.dumps({"fileDescriptorSet": encoded, "rootMessageTypeName": "M0"}).encode(),
    )


@pytest.mark.slow
def test_two_unions_of_many_records_end_in_a_named_error() -> None:
    began = time.thread_time()
    with pytest.raises(SchemaTooComplexError, match="200000 pairs"):
        check_compatible(union("a", 1_500), [union("b", 1_500)], "FULL")
    assert time.thread_time() - began < 2 * check_budget.SECONDS_MAX


def test_a_large_union_that_keeps_its_names_may_grow() -> None:
    before, after = union("a", 1_000), union("a", 1_001)
    check_compatible(after, [before], "BACKWARD")


def test_long_chains_of_messages_are_compared_without_recursion() -> None:
    check_compatible(chain(5_000), [chain(5_000)], "FULL")


@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        (avro({"type": "enum", "name": "E", "symbols": [f"S{number}" for number in range(20_001)]}), "20000 values"),
        (avro({"type": "record", "name": "R", "namespace": "n" * 1_025, "fields": []}), "1024 characters"),
        (avro({"type": "record", "name": "R", "fields": [{"name": "f", "type": ["n" * 100_000]}]}), None),
        (chain(10_001), "20000 together"),
        (SchemaInfo(SchemaType.AVRO, b"[" * 10_000), "64 levels"),
        (SchemaInfo(SchemaType.PROTOBUF_NATIVE, b"[" * 10_000), "64 levels"),
    ],
)
def test_a_definition_above_a_limit_is_refused_by_name(schema: SchemaInfo, limit: str | None) -> None:
    with pytest.raises(IncompatibleSchemaError) as refused:
        check_definition(schema)
    assert refused.value.limit == limit
    assert len(str(refused.value)) < 2_000


def test_a_check_has_so_much_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_budget, "SECONDS_MAX", -1.0)
    with pytest.raises(SchemaTooComplexError, match="takes too long"):
        CheckBudget().step(check_budget.STEPS_IN_TURN)


async def new_registry() -> SchemaRegistry:
    store = MemoryServer().open_session()
    await initialise(store)
    return SchemaRegistry(store)


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE"])
async def test_no_question_about_a_schema_fails_with_anything_but_a_named_error(kind: str) -> None:
    registry = await new_registry()
    schema = SchemaInfo(SchemaType[kind], b"[" * 100_000)
    for question in (registry.add, registry.check, registry.check_consumer):
        with pytest.raises(HeliographError):
            await question(TOPIC, schema, Policies())
    if kind == "KEY_VALUE":
        assert await registry.version_of(TOPIC, schema) is None
    else:
        with pytest.raises(IncompatibleSchemaError):
            await registry.version_of(TOPIC, schema)


async def test_a_check_runs_on_a_thread_one_at_a_time_for_a_topic() -> None:
    checks, running, most = SchemaChecks(), [0], [0]
    main = threading.get_ident()

    def check() -> bool:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.005)
        running[0] -= 1
        return threading.get_ident() != main

    assert all(await asyncio.gather(*(checks.run("a", check) for _ in range(check_budget.CHECKS_OF_TOPIC_MAX))))
    assert most == [1]


async def test_definitions_are_read_for_a_comparison_when_there_is_room_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = await new_registry()
    record: dict[str, Any] = {"type": "record", "name": "A", "fields": []}
    assert await registry.add(TOPIC, avro(record), Policies()) == 0
    monkeypatch.setattr(unpacking, "budget", UnpackBudget(1))
    held = await unpacking.budget.take("another tenant", 1)
    read: list[object] = []
    definitions = registry._definitions

    async def noted(*wanted: Any) -> list[SchemaInfo]:
        read.append(wanted)
        return await definitions(*wanted)

    monkeypatch.setattr(registry, "_definitions", noted)
    adding = asyncio.create_task(registry.add(TOPIC, avro(record | {"doc": "another"}), Policies()))
    done, _ = await asyncio.wait([adding], timeout=0.2)
    assert (done, read) == (set(), [])
    held.release()
    assert await asyncio.wait_for(adding, 60) == 1
    assert (len(read), unpacking.budget.held_bytes) == (1, 0)


async def test_checks_that_wait_are_bounded() -> None:
    checks, go = SchemaChecks(), threading.Event()
    wait: Callable[[], bool] = go.wait
    of_one = [asyncio.create_task(checks.run("a", wait)) for _ in range(check_budget.CHECKS_OF_TOPIC_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceededError, match="a"):
        await checks.run("a", wait)
    others = [
        asyncio.create_task(checks.run(str(number), wait))
        for number in range(check_budget.CHECKS_WAITING_MAX - check_budget.CHECKS_OF_TOPIC_MAX)
    ]
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceededError):
        await checks.run("b", wait)
    go.set()
    await asyncio.gather(*of_one, *others)
    assert await checks.run("b", lambda: 7) == 7


async def test_the_versions_of_one_topic_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, policies = await new_registry(), Policies(schema_compatibility="ALWAYS_COMPATIBLE")
    monkeypatch.setattr("heliograph.actors.broker.schema.registry.DEFINITIONS_BYTES_MAX", 1 << 20)
    large = [avro({"type": "record", "name": f"R{number}", "doc": "d" * 300_000, "fields": []}) for number in range(9)]
    for schema in large[:2]:
        await registry.add(TOPIC, schema, policies)
    with pytest.raises(QuotaExceededError) as refused:
        await asyncio.gather(*(registry.add(TOPIC, schema, policies) for schema in large[2:]))
    assert refused.value.limit == f"{1 << 20} bytes"
    assert 2 <= len(await registry.versions(TOPIC)) <= 4
    await registry.forget(TOPIC)
    assert not await registry.has_schema(TOPIC)

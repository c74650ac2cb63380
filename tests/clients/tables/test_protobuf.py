"""Java's ``Schema.PROTOBUF(Class)``: tables read the messages that it wrote, and it reads what they wrote."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, struct_pb2, type_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as ProtobufMessage

from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.plan import plan_topic, schema_versions
from heliograph.pipelines.reading.range_reader import read_table
from heliograph.pipelines.reading.registry import GivenDescriptor, RegistryRead, schemas_of
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.options import WriteOptions
from heliograph.pipelines.writing.table_writer import TableWriter
from tests.clients.support.maven import build
from tests.clients.support.program import run_program
from tests.clients.support.stack import ClientsStack, running_stack

FOLDER = Path(__file__).parent
JAVA_VERSION = "4.2.4"
SECONDS_MAX = 240.0
HOME = "com.google.protobuf."

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]


def _struct(**fields: Any) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(fields)
    return made


def _messages() -> dict[str, list[Any]]:
    """Return messages by the names of their classes: repeated and packed fields, enums, maps, oneofs, recursion."""
    kind: Any = type_pb2.Type
    option: Any = descriptor_pb2.UninterpretedOption
    location: Any = descriptor_pb2.SourceCodeInfo.Location
    field = {"name": "f", "kind": "TYPE_BOOL", "number": 3, "packed": True}
    return {
        "Type": [kind(name="t", fields=[field], oneofs=["a", "b"], syntax="SYNTAX_PROTO3"), kind()],
        "Struct": [_struct(a=1.5, b="text \N{SNOWMAN}", c={"d": [True, None, {}]}), struct_pb2.Struct()],
        "DescriptorProtos$SourceCodeInfo$Location": [
            location(path=[1, -2, 1 << 30], span=[0], leading_comments="c", leading_detached_comments=["x", ""])
        ],
        "DescriptorProtos$UninterpretedOption": [
            option(name=[{"name_part": "n", "is_extension": True}], positive_int_value=(1 << 64) - 1),
            option(string_value=b"\x00\xff", double_value=-0.5, negative_int_value=-1),
        ],
    }


class Java:
    """Pulsar's Java client beside a cluster."""

    def __init__(self, stack: ClientsStack) -> None:
        self._stack = stack
        project = build(FOLDER / "java", pulsar_version=JAVA_VERSION)
        self._command = project.command("heliograph.tables.Messages")

    def write(self, topics: dict[str, list[ProtobufMessage]]) -> None:
        arguments = []
        for name, messages in topics.items():
            packed = (base64.b64encode(one.SerializeToString()).decode() for one in messages)
            arguments += [topic_of(name), HOME + name, ",".join(packed)]
        run = run_program("write", [*self._command, self._stack.service_url, "write", *arguments], seconds=SECONDS_MAX)
        for name in topics:
            run.check(topic_of(name))

    def read(self, *names: str) -> dict[str, list[bytes]]:
        arguments = [one for name in names for one in (topic_of(name), HOME + name)]
        run = run_program("read", [*self._command, self._stack.service_url, "read", *arguments], seconds=SECONDS_MAX)
        told = {name: run.check(topic_of(name)).detail for name in names}
        return {name: [base64.b64decode(one) for one in text.split(",")] for name, text in told.items()}


def topic_of(name: str) -> str:
    return f"persistent://public/default/{name.rpartition('$')[2]}"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientsStack]:
    with running_stack(tmp_path_factory.mktemp("protobuf"), brokers=1) as running:
        yield running


def rows_of(stack: ClientsStack, name: str, given: GivenDescriptor = None) -> pa.Table:
    access = ClusterAccess(gateway=stack.web_url)
    schemas = schemas_of(topic_of(name), schema_versions(topic_of(name), access), RegistryRead.of(given))
    return pa.Table.from_batches(
        read_table(plan_topic(topic_of(name), access=access), ("value",), schemas=schemas),
    )


def test_messages_of_java_as_tables_and_back(stack: ClientsStack) -> None:
    java, topics = Java(stack), _messages()
    java.write(topics)
    first, second = rows_of(stack, "Type").to_pylist()
    assert (first["name"], first["oneofs"], first["syntax"]) == ("t", ["a", "b"], 1)
    assert first["fields"] == [topics["Type"][0].fields[0].SerializeToString()]
    assert (second["name"], second["fields"], second["syntax"]) == ("", [], None)
    (row,) = rows_of(stack, "DescriptorProtos$SourceCodeInfo$Location").to_pylist()
    assert (row["path"], row["leading_detached_comments"]) == ([1, -2, 1 << 30], ["x", ""])
    first, second = rows_of(stack, "DescriptorProtos$UninterpretedOption").to_pylist()
    assert (int(first["positive_int_value"]), second["string_value"]) == ((1 << 64) - 1, b"\x00\xff")

    access = ClusterAccess(gateway=stack.web_url)
    for name, messages in topics.items():
        given = type(messages[0])
        table = rows_of(stack, name, given)
        read = RegistryRead.of(given)
        options = WriteOptions(WrittenColumns.named(None), access, schema="registry", read=read)
        writer = TableWriter.create(topic_of(name), options, table.schema)
        assert writer.write([table]) == len(messages)
        assert len(schema_versions(topic_of(name), access)) == 1
    for name, found in java.read(*topics).items():
        kind, count = type(topics[name][0]), len(topics[name])
        assert found[:count] == [one.SerializeToString() for one in topics[name]]
        again = [MessageToDict(kind.FromString(one)) for one in found[count:]]
        assert again == [MessageToDict(one) for one in topics[name]]

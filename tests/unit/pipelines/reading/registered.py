"""What Java's ``Schema.PROTOBUF(Class)`` registers, for classes that Python's Protobuf has as well."""

from __future__ import annotations

import json
from typing import Any

from heliograph.protocol.schema import SchemaInfo, SchemaType

_TEXT = {"type": "string", "avro.java.string": "String"}
_INTS = {"type": "array", "items": "int"}


def java_schema(name: str, *fields: tuple[int, str, str, Any], repeated: tuple[str, ...] = ()) -> SchemaInfo:
    """Return a schema of a class, with its fields' numbers, names, types of Protobuf and of Avro."""
    definition = {
        "type": "record",
        "name": name,
        "namespace": "com.google.protobuf.DescriptorProtos",
        "fields": [
            {"name": one, "type": avro if one not in repeated else {"type": "array", "items": avro}, "default": default}
            for _, one, _, (avro, default) in fields
        ],
    }
    told = [
        {
            "number": number,
            "name": one,
            "type": kind,
            "label": "LABEL_REPEATED" if one in repeated else "LABEL_OPTIONAL",
            "definition": None,
        }
        for number, one, kind, _ in fields
    ]
    properties = {"__alwaysAllowNull": "true", "__PARSING_INFO__": json.dumps(told)}
    return SchemaInfo(SchemaType.PROTOBUF, json.dumps(definition).encode(), "", properties)


def _message(name: str) -> tuple[Any, Any]:
    return (["null", {"type": "record", "name": name, "fields": []}], None)


LOCATION = java_schema(
    "Location",
    (1, "path", "INT32", ("int", [])),
    (2, "span", "INT32", ("int", [])),
    (3, "leading_comments", "STRING", (_TEXT, "")),
    (4, "trailing_comments", "STRING", (_TEXT, "")),
    (6, "leading_detached_comments", "STRING", (_TEXT, [])),
    repeated=("path", "span", "leading_detached_comments"),
)
OPTION = java_schema(
    "UninterpretedOption",
    (2, "name", "MESSAGE", ({"type": "record", "name": "NamePart", "fields": []}, [])),
    (3, "identifier_value", "STRING", (_TEXT, "")),
    (4, "positive_int_value", "UINT64", ("long", 0)),
    (5, "negative_int_value", "INT64", ("long", 0)),
    (6, "double_value", "DOUBLE", ("double", 0.0)),
    (7, "string_value", "BYTES", ("bytes", "")),
    (8, "aggregate_value", "STRING", (_TEXT, "")),
    repeated=("name",),
)
TYPE = java_schema(
    "Type",
    (1, "name", "STRING", (_TEXT, "")),
    (2, "fields", "MESSAGE", ({"type": "record", "name": "Field", "fields": []}, [])),
    (3, "oneofs", "STRING", (_TEXT, [])),
    (4, "options", "MESSAGE", ({"type": "record", "name": "Option", "fields": []}, [])),
    (5, "source_context", "MESSAGE", _message("SourceContext")),
    (6, "syntax", "ENUM", ({"type": "enum", "name": "Syntax", "symbols": ["SYNTAX_PROTO2"]}, "SYNTAX_PROTO2")),
    (7, "edition", "STRING", (_TEXT, "")),
    repeated=("fields", "oneofs", "options"),
)
STRUCT = java_schema(
    "Struct",
    (1, "fields", "MESSAGE", ({"type": "record", "name": "FieldsEntry", "fields": []}, [])),
    repeated=("fields",),
)

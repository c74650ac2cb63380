"""Values in Avro's binary form as JSON, for the peers of WebSockets. No I/O.

The library that reads them ends the process when records in records are too deep, and reads any number of items that
have no bytes. So a value is read only by a definition that bounds it by its bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.base.guard.json_text import parse_json
from heliograph.client.schemas.decoding import checked
from heliograph.gateway.shapes.json_forms import compact_json
from heliograph.protocol.schema import without_logical_types

DEFINITION_BYTES_MAX = 64 << 10
DEPTH_MAX = 64  # of types in types
VALUE_BYTES_MAX = 1 << 20  # in Avro
TEXT_BYTES_MAX = 64 << 20  # the value as JSON, at most: each byte may stand for a name
_EMPTY = ("null", {"type": "null"})


def avro_text(definition: bytes, field: str) -> Callable[[bytes], bytes]:
    """Return what makes JSON of values; it raises ProtocolError or BadRequestError for those that have none.

    Values of logical types are what Avro stores for them: milliseconds for a ``timestamp-millis``.

    Raises:
        UnsupportedError: the definition bounds no value by its bytes, or is too long; names the field.
    """
    import fastavro

    if len(definition) > DEFINITION_BYTES_MAX:
        limit = f"{DEFINITION_BYTES_MAX} bytes"
        raise UnsupportedError("the schema is too long for values as JSON", field=field, limit=limit)
    plain = without_logical_types(parse_json(definition, field, field))
    bounds = _Bounds(field)
    bounds.check(plain, "", 0)
    parsed = fastavro.parse_schema(plain)
    bytes_max = min(VALUE_BYTES_MAX, TEXT_BYTES_MAX // (bounds.longest_name + 8))

    def text(data: bytes) -> bytes:
        if len(data) > bytes_max:
            raise BadRequestError("the value is too long for JSON", field=field, limit=f"{bytes_max} bytes")
        return compact_json(fastavro.schemaless_reader(io.BytesIO(data), parsed, None), field).encode()

    return checked(text)


class _Bounds:
    """Walks a definition once. Each value of a type has a byte, and none contains another one of its own type."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._depths: dict[str, int] = {}  # of named types, by full name; -1 for one that is being walked
        self.longest_name = 0

    def check(self, schema: Any, namespace: str, depth: int) -> int:
        """Return how deep the types in a type are.

        Raises:
            UnsupportedError: a type is without bytes or in itself, or types are too deep.
        """
        if depth > DEPTH_MAX:
            raise self._refused("has types in types that are too deep")
        if schema in _EMPTY or (isinstance(schema, dict) and (schema.get("fields") == [] or schema.get("size") == 0)):
            raise self._refused("has a type whose values have no bytes")
        if isinstance(schema, str):
            full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
            below = self._depths.get(full, self._depths.get(schema, 0))
            if below < 0:
                raise self._refused("has a type that contains itself")
            if depth + below > DEPTH_MAX:
                raise self._refused("has types in types that are too deep")
            return below
        if isinstance(schema, list):
            return self._deepest([one for one in schema if one not in _EMPTY], namespace, depth)
        if "name" not in schema or schema["type"] not in ("record", "error", "enum", "fixed"):
            inner = [schema[part] for part in ("items", "values") if part in schema]
            return self._deepest(inner or [schema["type"]], namespace, depth)
        name = str(schema["name"])
        namespace = name.rpartition(".")[0] or str(schema.get("namespace") or namespace)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        fields = schema.get("fields", ())
        names = [one["name"] for one in fields] + schema.get("symbols", [])
        self.longest_name = max([self.longest_name, *map(len, names)])
        self._depths[full] = -1
        self._depths[full] = self._deepest([one["type"] for one in fields], namespace, depth)
        return self._depths[full]

    def _deepest(self, schemas: list[Any], namespace: str, depth: int) -> int:
        return 1 + max((self.check(one, namespace, depth + 1) for one in schemas), default=0)

    def _refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"the schema {why}: read the bytes of Avro, without {self._field}", field=self._field)

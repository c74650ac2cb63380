"""Values in Avro's binary form as JSON, for the peers of WebSockets. No I/O.

The library that reads them ends the process when records in records are too deep, and reads any number of items that
have no bytes. So a value is read only by a definition that bounds it by its bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.base.guard.json_text import parse_json
from heliograph.client.schemas.avro_bounds import AvroBounds
from heliograph.client.schemas.decoding import checked
from heliograph.gateway.shapes.json_forms import compact_json
from heliograph.protocol.schema import without_logical_types

DEFINITION_BYTES_MAX = 64 << 10
VALUE_BYTES_MAX = 1 << 20  # in Avro
TEXT_BYTES_MAX = 64 << 20  # the value as JSON, at most: each byte may stand for a name


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
    bounds = AvroBounds(field)
    bounds.check(plain, "", 0)
    parsed = fastavro.parse_schema(plain)
    bytes_max = min(VALUE_BYTES_MAX, TEXT_BYTES_MAX // (bounds.longest_name + 8))

    def text(data: bytes) -> bytes:
        if len(data) > bytes_max:
            raise BadRequestError("the value is too long for JSON", field=field, limit=f"{bytes_max} bytes")
        return compact_json(fastavro.schemaless_reader(io.BytesIO(data), parsed, None), field).encode()

    return checked(text)

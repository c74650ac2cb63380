"""The values of a handle's ``schema=``."""

from __future__ import annotations

import dataclasses

from heliograph.base.errors import BadRequestError
from heliograph.client.schemas.records import JsonSchema, TextSchema
from heliograph.client.schemas.schema import Schema, SchemaLike


def schema_of(given: SchemaLike) -> Schema | None:
    """Return the schema that a caller names: by a ``Schema``, or by the type of the values.

    Args:
        given: ``bytes`` or None for payloads as they are; ``str``; ``dict`` for JSON of any form; a pydantic model or a
            dataclass; ``numpy.ndarray``; ``pyarrow.RecordBatch`` or ``pyarrow.Table``; or a ``Schema``.

    Raises:
        BadRequestError: It is none of these, or a field of the class has no form in JSON.
    """
    if given is None or given is bytes:
        return None
    if isinstance(given, Schema):
        return given
    if given is str:
        return TextSchema()
    if given is dict:
        return JsonSchema()
    if isinstance(given, type):
        home = f"{given.__module__.partition('.')[0]}.{given.__name__}"
        if home in ("numpy.ndarray", "pyarrow.RecordBatch", "pyarrow.Table"):
            from heliograph.client.schemas.arrays import ArraySchema, TableSchema

            return ArraySchema() if home == "numpy.ndarray" else TableSchema(given.__name__)
        if dataclasses.is_dataclass(given) or hasattr(given, "model_fields"):
            from heliograph.client.schemas.models import ModelSchema

            return ModelSchema(given)
    raise BadRequestError(
        f"{given!r} is no schema: it is bytes, str, dict, a pydantic model, a dataclass, numpy.ndarray, "
        "pyarrow.RecordBatch, pyarrow.Table, a JsonSchema or an AvroSchema",
        field="schema",
    )

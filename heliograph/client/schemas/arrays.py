"""Arrays of numpy and tables of Arrow as values.

Pulsar has no schema type for them: to the registry their messages are bytes. The payload describes itself, in the
formats of ``numpy.save`` and of Arrow's streams, and a property of the message names the format.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from heliograph.base.errors import BadRequestError, ProtocolError
from heliograph.base.version import extra_required
from heliograph.client.schemas.decoding import checked
from heliograph.client.schemas.schema import DecodeValue, Schema
from heliograph.protocol.schema import SchemaInfo

CONTENT_TYPE = "content-type"  # the property
ARRAY_TYPE = "application/x-npy"
TABLE_TYPE = "application/vnd.apache.arrow.stream"


@dataclasses.dataclass(frozen=True, slots=True)
class ArraySchema(Schema):
    """Arrays of numpy of any shape, without Python objects in them."""

    @property
    @override
    def properties(self) -> Mapping[str, str]:
        return {CONTENT_TYPE: ARRAY_TYPE}

    @override
    def encode(self, value: Any) -> bytes:
        with extra_required():
            import numpy as np
        if not isinstance(value, np.ndarray):
            raise BadRequestError(f"a value must be numpy.ndarray, not {type(value).__name__}", field="value")
        out = io.BytesIO()
        try:
            np.lib.format.write_array(out, value, allow_pickle=False)
        except ValueError as error:
            raise BadRequestError(f"the array cannot be sent: {error}", field="value") from error
        return out.getvalue()

    @override
    def decoder(self, written: SchemaInfo | None) -> DecodeValue:
        with extra_required():
            import numpy as np
        _require_none(written)
        # Nothing received may run code.
        return checked(lambda value: np.lib.format.read_array(io.BytesIO(value), allow_pickle=False))


@dataclasses.dataclass(frozen=True, slots=True)
class TableSchema(Schema):
    """Record batches or tables of Arrow.

    Args:
        shown: ``RecordBatch`` or ``Table``: what values are, and become again.
    """

    shown: str

    @property
    @override
    def properties(self) -> Mapping[str, str]:
        return {CONTENT_TYPE: TABLE_TYPE}

    @override
    def encode(self, value: Any) -> bytes:
        with extra_required():
            import pyarrow as pa
        if not isinstance(value, getattr(pa, self.shown)):
            raise BadRequestError(f"a value must be pyarrow.{self.shown}, not {type(value).__name__}", field="value")
        out = io.BytesIO()
        with pa.ipc.new_stream(out, value.schema) as stream:
            stream.write(value)
        return out.getvalue()

    @override
    def decoder(self, written: SchemaInfo | None) -> DecodeValue:
        with extra_required():
            import pyarrow as pa
        _require_none(written)

        def decode(value: bytes) -> Any:
            table = pa.ipc.open_stream(value).read_all()
            if self.shown == "Table":
                return table
            batches = table.combine_chunks().to_batches()
            return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)

        return checked(decode)


def _require_none(written: SchemaInfo | None) -> None:
    if written is not None and not written.is_none:
        raise ProtocolError(f"the message has a schema of type {written.type.name}, not bytes", field="schema")

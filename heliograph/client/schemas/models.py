"""Pydantic models and dataclasses as values: JSON, defined by an Avro record, as Pulsar's JSON schemas have it."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from typing_extensions import override

from heliograph.base.errors import BadRequestError
from heliograph.client.schemas.decoding import checked, require_same_type
from heliograph.client.schemas.schema import DecodeValue, Schema
from heliograph.protocol.schema import SchemaInfo, SchemaType

DEPTH_MAX = 32  # of types in types (I15)
_MISSING: Any = object()
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIMITIVES: Mapping[Any, str] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
    **dict.fromkeys((datetime, date, time, timedelta, Decimal, UUID, Path), "string"),  # as pydantic writes them
}


class ModelSchema(Schema):
    """Instances of a pydantic model or a dataclass, of Pulsar's type JSON.

    Values are checked by pydantic, at both ends. Fields with a default may be missing from what is received.

    Args:
        model: The class; it has to be importable where the handle is unpickled.

    Raises:
        BadRequestError: A field has a type that an Avro record cannot describe.
    """

    def __init__(self, model: type) -> None:
        self._model = model
        record = _RecordDefinition().record(model, 0)
        self._info = SchemaInfo(SchemaType.JSON, json.dumps(record, separators=(",", ":")).encode(), model.__name__)

    @property
    @override
    def info(self) -> SchemaInfo:
        return self._info

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter

        return TypeAdapter(self._model)

    @override
    def encode(self, value: Any) -> bytes:
        if not isinstance(value, self._model):
            expected = self._model.__name__
            raise BadRequestError(f"a value must be {expected}, not {type(value).__name__}", field="value")
        try:
            packed: bytes = self._adapter.dump_json(value, by_alias=True, warnings="error")
            return packed
        except Exception as error:  # a class of the user's may raise anything
            raise BadRequestError(f"the value does not fit {self._model.__name__}: {error}", field="value") from error

    @override
    def decoder(self, written: SchemaInfo | None) -> DecodeValue:
        require_same_type(written or self.info, self.info)
        return checked(self._adapter.validate_json)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelSchema, (self._model,)


class _RecordDefinition:
    """The Avro form of classes. A class that occurs again is named."""

    def __init__(self) -> None:
        self._named: dict[type, str] = {}

    def record(self, model: type, depth: int) -> dict[str, Any]:
        name = model.__name__
        if not _NAME.fullmatch(name) or name in self._named.values():
            raise BadRequestError(f"the name {name!r} is none of an Avro record, or is there twice", field="schema")
        self._named[model] = name
        fields = [self._field(model, *one, depth + 1) for one in _fields_of(model)]
        return {"type": "record", "name": name, "fields": fields}

    def _field(self, model: type, name: str, kind: Any, default: Any, depth: int) -> dict[str, Any]:
        try:
            form = self._type(kind, depth)
        except BadRequestError as error:
            raise BadRequestError(f"{model.__name__}.{name}: {error}", field="schema") from error
        if not _NAME.fullmatch(name):
            raise BadRequestError(f"{model.__name__}.{name!r} is no name of an Avro field", field="schema")
        found: dict[str, Any] = {"name": name, "type": form}
        if default is _MISSING:
            return found
        if isinstance(form, list):  # a default of a union is of its first type
            form.sort(key=lambda one: (one == "null") != (default is None))
        if _is_default_of(form, default):
            found["default"] = default
        return found

    def _type(self, kind: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise BadRequestError("types in types are too deep", field="schema", limit=f"{DEPTH_MAX}")
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self._type(arguments[0], depth + 1)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, depth)
        if origin is typing.Literal:
            return self._union(dict.fromkeys(map(type, arguments)), depth)
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if origin in (list, set, frozenset, Sequence) or (origin is tuple and arguments[1:] == (...,)):
            return {"type": "array", "items": self._type(arguments[0], depth + 1)}
        if origin in (dict, Mapping) and arguments[0] is str:
            return {"type": "map", "values": self._type(arguments[1], depth + 1)}
        if isinstance(kind, type):
            return self._class(kind, depth)
        raise BadRequestError(f"{kind} has no form in an Avro record", field="schema")

    def _union(self, kinds: Any, depth: int) -> Any:
        forms: list[Any] = []
        for kind in kinds:
            form = self._type(kind, depth + 1)
            if form not in forms:
                forms.append(form)
        forms.sort(key=lambda form: form != "null")
        if len({form if isinstance(form, str) else form["type"] + form.get("name", "") for form in forms}) < len(forms):
            raise BadRequestError("a union has two arrays or two maps", field="schema")
        return forms if len(forms) > 1 else forms[0]

    def _class(self, kind: type, depth: int) -> Any:
        if kind in self._named:
            return self._named[kind]
        if dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields"):
            return self.record(kind, depth)
        if issubclass(kind, enum.Enum):
            return self._union(dict.fromkeys(type(one.value) for one in kind), depth)
        raise BadRequestError(f"{kind.__name__} has no form in an Avro record", field="schema")


def _fields_of(model: type) -> Iterator[tuple[str, Any, Any]]:
    """Yield name in JSON, type and default of each field; ``_MISSING`` for a field that has none, or none yet."""
    if dataclasses.is_dataclass(model):
        try:
            hints = typing.get_type_hints(model, include_extras=True)
        except (NameError, TypeError) as error:
            raise BadRequestError(f"the types of {model.__name__} are not known: {error}", field="schema") from error
        for entry in dataclasses.fields(model):
            default = _default(entry.default, entry.default_factory, dataclasses.MISSING)
            yield entry.name, hints[entry.name], default
        return
    from pydantic_core import PydanticUndefined

    for name, info in model.model_fields.items():  # type: ignore[attr-defined]  # of a pydantic model
        default = _default(info.default, info.default_factory or PydanticUndefined, PydanticUndefined)
        yield info.serialization_alias or info.alias or name, info.annotation, default


def _default(default: Any, factory: Any, missing: Any) -> Any:
    if default is not missing:
        return default.value if isinstance(default, enum.Enum) else default
    return factory() if factory in (list, dict) else _MISSING


def _is_default_of(form: Any, default: Any) -> bool:
    """Return whether an Avro definition can hold the default of a type."""
    if isinstance(form, list):
        form = form[0]
    fits: Mapping[str, Callable[[Any], bool]] = {
        "null": lambda value: value is None,
        "boolean": lambda value: type(value) is bool,
        "long": lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63,
        "double": lambda value: type(value) in (int, float) and value == value and abs(value) != float("inf"),
        "string": lambda value: type(value) is str,
        "array": lambda value: value == [],
        "map": lambda value: value == {},
    }
    check = fits.get(form if isinstance(form, str) else form["type"])
    return check is not None and check(default)

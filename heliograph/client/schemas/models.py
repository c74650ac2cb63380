"""Pydantic models and dataclasses as values: JSON, defined by an Avro record, as Pulsar's JSON schemas have it."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from typing_extensions import override

from heliograph.base.errors import BadRequestError
from heliograph.client.schemas.decoding import checked, require_same_type
from heliograph.client.schemas.reading_back import difference, fault_of
from heliograph.client.schemas.schema import DecodeValue, Schema
from heliograph.protocol.schema import JSON_TEXT, SchemaInfo, SchemaType

DEPTH_MAX = 32  # of types in types (I15)
_MISSING: Any = object()
_CHANGING: Any = object()  # a default that is another one each time
_LONG_NUMBER = re.compile(rb"[0-9]{19}")  # of a number that may be none of 64 bits
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
_NAMES = ("string", "long", "boolean", "double")  # what pydantic writes as the name of a member, and reads
_ARRAYS = (list, set, frozenset, tuple, Sequence)
# A value of any form. Avro has no type for it: readers that know the attribute show JSON text, others ignore it.
_ANY: Sequence[Any] = ("null", JSON_TEXT)


class ModelSchema(Schema):
    """Instances of a pydantic model or a dataclass, of Pulsar's type JSON.

    Values are checked by pydantic, at both ends. A value that its class does not read back from JSON as it was is
    refused before it is sent. Fields with a default may be missing from what is received.

    Args:
        model: The class; it has to be importable where the handle is unpickled.

    Raises:
        BadRequestError: A field has a type that an Avro record cannot describe.
    """

    def __init__(self, model: type) -> None:
        self._model = model
        definition = _RecordDefinition()
        record = definition.record(model, 0)
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
        name = self._model.__name__
        try:
            packed: bytes = self._adapter.dump_json(value, by_alias=True, warnings="error")
            read = self._adapter.validate_json(packed)
            fault = None if read == value else difference(value, read)
        except Exception as error:  # a class of the user's may raise anything
            fault = fault_of(value) or f"the value is not written, or not read back: {error}"
            raise BadRequestError(f"{fault}: it does not fit {name}", field="value") from error
        if fault is not None or _LONG_NUMBER.search(packed):
            fault = fault_of(value) or fault
        if fault is not None:
            raise BadRequestError(f"{fault}: it does not fit {name}", field="value")
        return packed

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
        self._records: dict[str, Any] = {}  # by name

    def record(self, model: type, depth: int) -> dict[str, Any]:
        name = model.__name__
        if not _NAME.fullmatch(name) or name in self._named.values():
            raise BadRequestError(f"the name {name!r} is none of an Avro record, or is there twice", field="schema")
        self._named[model] = name
        fields = [self._field(model, *one, depth + 1) for one in _fields_of(model)]
        self._records[name] = {"type": "record", "name": name, "fields": fields}
        return dict(self._records[name])

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
        default = _in_json(kind, default)
        if isinstance(form, list):  # a default of a union is of its first type
            form.sort(key=lambda one: not self._fits(one, default))
        if self._fits(form, default):
            return found | {"default": default}
        return found | {"type": _optional(form), "default": None}  # Avro cannot say it: to other readers it is null

    def _fits(self, form: Any, default: Any) -> bool:
        """Return whether an Avro definition can hold the default of a type."""
        if isinstance(form, list):
            form = form[0]
        kind = form if isinstance(form, str) else form["type"]
        if kind in _DEFAULTS:
            return _DEFAULTS[kind](default)
        if kind == "array":
            return isinstance(default, list) and all(self._fits(form["items"], each) for each in default)
        if kind == "map":
            return isinstance(default, dict) and all(self._fits(form["values"], each) for each in default.values())
        record = form if kind == "record" else self._records.get(kind)
        if record is None or not isinstance(default, dict):
            return False  # a class within itself is not described to its end here
        return all(
            each["name"] in default and self._fits(each["type"], default[each["name"]]) for each in record["fields"]
        )

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
        if kind in (Any, object):
            return list(_ANY)
        if (origin or kind) in _ARRAYS:
            items = arguments or (Any,)
            items = items[:-1] if items[-1:] == (...,) else items
            return {"type": "array", "items": self._union(items, depth) if items else list(_ANY)}
        if (origin or kind) in (dict, Mapping):
            name, each = arguments or (str, Any)
            if self._type(name, depth + 1) not in _NAMES:
                raise BadRequestError(f"{kind} has keys that are no names in JSON", field="schema")
            return {"type": "map", "values": self._type(each, depth + 1)}
        if isinstance(kind, type):
            return self._class(kind, depth)
        raise BadRequestError(f"{kind} has no form in an Avro record", field="schema")

    def _union(self, kinds: Iterable[Any], depth: int) -> Any:
        forms: list[Any] = []
        for kind in kinds:
            form = self._type(kind, depth + 1)
            forms += [one for one in (form if isinstance(form, list) else [form]) if one not in forms]
        if _ANY[1] in forms:
            return list(_ANY)
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
        if info.exclude:
            continue
        default = _default(info.default, info.default_factory or PydanticUndefined, PydanticUndefined)
        yield info.serialization_alias or info.alias or name, info.annotation, default


def _default(default: Any, factory: Any, missing: Any) -> Any:
    if default is not missing:
        return default
    if factory is missing:
        return _MISSING
    try:
        first, second = factory(), factory()
        return first if first == second else _CHANGING  # the time, say: every value has another one
    except Exception:  # it needs the other fields, or more than the definition has
        return _CHANGING


def _optional(form: Any) -> list[Any]:
    """Return a definition that has null, as its first type."""
    return ["null", *(one for one in (form if isinstance(form, list) else [form]) if one != "null")]


def _in_json(kind: Any, default: Any) -> Any:
    """Return a default as values have it in JSON; ``_CHANGING`` if it has no form there."""
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(kind).dump_python(default, mode="json", by_alias=True, warnings="error")
    except Exception:  # a class of the user's may raise anything
        return _CHANGING


_DEFAULTS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: type(value) is bool,
    "long": lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63,
    "double": lambda value: type(value) in (int, float) and math.isfinite(value),
    "string": lambda value: type(value) is str,
    "bytes": lambda value: type(value) is str and value.isascii(),  # Avro's defaults are Latin-1, values are UTF-8
}

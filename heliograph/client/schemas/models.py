"""Pydantic models and dataclasses as values: JSON, defined by an Avro record, as Pulsar's JSON schemas have it."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
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
        definition = _RecordDefinition()
        record = definition.record(model, 0)
        self._has_fractions = definition.has_fractions
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
            if self._has_fractions:
                self._check_finite(value, packed)
            return packed
        except BadRequestError:
            raise
        except Exception as error:  # a class of the user's may raise anything
            raise BadRequestError(f"the value does not fit {self._model.__name__}: {error}", field="value") from error

    def _check_finite(self, value: Any, packed: bytes) -> None:
        """Refuse NaN and infinities, which JSON does not have, unless the class writes them so that it reads them."""
        path = next(_not_finite(value), None)
        if path is None:
            return
        try:
            is_read = next(_not_finite(self._adapter.validate_json(packed)), None) == path
        except Exception:  # as for ``encode``; pydantic's own is ValueError
            is_read = False
        if not is_read:
            raise BadRequestError(
                f"{path.lstrip('.')} is not finite, and {self._model.__name__} reads back something else from JSON",
                field="value",
            )

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
        self.has_fractions = False  # whether a value may hold what is not finite

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
        default = _MISSING if default is _MISSING else _in_json(kind, default)
        if default is _MISSING:
            return found
        if isinstance(form, list):  # a default of a union is of its first type
            form.sort(key=lambda one: not self._fits(one, default))
        if self._fits(form, default):
            found["default"] = default
        return found

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
            self.has_fractions |= kind in (float, Decimal)
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


def _not_finite(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the numbers in a value that are not finite."""
    if isinstance(value, float | Decimal):
        if not math.isfinite(value):
            yield path
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _not_finite(each, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple | set | frozenset):
        for number, each in enumerate(value):
            yield from _not_finite(each, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value) or hasattr(type(value), "model_fields"):
        is_plain = dataclasses.is_dataclass(value)
        for name in [each.name for each in dataclasses.fields(value)] if is_plain else type(value).model_fields:
            yield from _not_finite(getattr(value, name), f"{path}.{name}")


def _default(default: Any, factory: Any, missing: Any) -> Any:
    if default is not missing:
        return default
    if factory is missing:
        return _MISSING
    try:
        first, second = factory(), factory()
        return first if first == second else _MISSING  # the time, say: every value has another one
    except Exception:  # it needs the other fields, or more than the definition has
        return _MISSING


def _in_json(kind: Any, default: Any) -> Any:
    """Return a default as values have it in JSON; ``_MISSING`` if it has no form there."""
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(kind).dump_python(default, mode="json", by_alias=True, warnings="error")
    except Exception:  # a class of the user's may raise anything
        return _MISSING


_DEFAULTS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: type(value) is bool,
    "long": lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63,
    "double": lambda value: type(value) in (int, float) and math.isfinite(value),
    "string": lambda value: type(value) is str,
    "bytes": lambda value: type(value) is str and value.isascii(),  # Avro's defaults are Latin-1, values are UTF-8
}

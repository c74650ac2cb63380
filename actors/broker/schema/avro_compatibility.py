"""The compatibility of Avro schemas: whether a reader's schema resolves against a writer's (pure).

The rules are those by which Avro's Java library resolves two schemas, which Pulsar's brokers apply. They are looser
than the ones of its class ``SchemaCompatibility``: the names of records are not compared, those of enumerations and
fixed types without their namespaces, and a reader may lack symbols of an enumeration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from avro.schema import ArraySchema, EnumSchema, FixedSchema, MapSchema, NamedSchema, RecordSchema, Schema, UnionSchema

from heliograph.actors.broker.schema.check_budget import CheckBudget

_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}


@dataclass(slots=True, eq=False)
class _Reading:
    """How one part of the writer's schema is read: not at all, with an ``error``, or by reading its parts."""

    error: str = ""
    parts: list[tuple[str, _Reading]] = field(default_factory=list)


def avro_can_read(reader: Schema, writer: Schema, budget: CheckBudget) -> str:
    """Return why the reader's schema cannot read data of the writer's, empty if it can.

    Raises:
        SchemaTooComplexError: to find out would take more than the budget.
    """
    try:
        if reader == writer:  # aliases that clash with other names of the same schema do not matter then
            return ""
        return _first_error(_Resolution(reader, budget).resolve(writer, reader))
    except RecursionError:
        return "the schemas refer to each other too deeply to be compared"


class _Branches:
    """The types of one union of the reader's, to find one without looking at all."""

    def __init__(self, union: UnionSchema) -> None:
        self.of_kind: dict[str, list[Any]] = {}  # in the union's order
        self.named: dict[tuple[str, str], Schema] = {}  # kind and full name -> the first
        for one in union.schemas:
            self.of_kind.setdefault(_kind(one), []).append(one)
            if isinstance(one, NamedSchema):
                self.named.setdefault((_kind(one), one.fullname), one)

    def first(self, kind: str) -> Schema | None:
        return next(iter(self.of_kind.get(kind, ())), None)


class _Resolution:
    """One pair of schemas that is compared, with the aliases of the reader's."""

    def __init__(self, reader: Schema, budget: CheckBudget) -> None:
        self._budget = budget
        self._branches: dict[int, _Branches] = {}  # by id of the reader's union
        self._names: dict[str, str] = {}  # alias -> full name
        self._fields: dict[str, dict[str, str]] = {}  # full name or alias of a record -> alias -> field
        self._records: dict[tuple[int, int], _Reading] = {}
        self._collect_aliases(reader, set())

    def resolve(self, writer: Schema, reader: Any) -> _Reading:
        """Return how the writer's schema is read with the reader's."""
        self._budget.step()
        kind = _kind(writer)
        if isinstance(writer, UnionSchema):
            return self._of_union(writer, reader)
        if kind == _kind(reader):
            if isinstance(writer, FixedSchema):
                return self._of_fixed(writer, reader)
            if isinstance(writer, ArraySchema):
                return _Reading(parts=[("items", self.resolve(writer.items, reader.items))])
            if isinstance(writer, MapSchema):
                return _Reading(parts=[("values", self.resolve(writer.values, reader.values))])
            if isinstance(writer, EnumSchema):
                return self._of_names(writer, reader)
            if isinstance(writer, RecordSchema):
                return self._of_record(writer, reader)
            return _Reading()
        if isinstance(reader, UnionSchema):
            branch = self._branch_for(writer, reader)
            if branch is None:
                return _Reading(f"no type of the reader's union reads {kind}")
            return _Reading(parts=[("", self.resolve(writer, branch))])
        if kind in _PROMOTIONS.get(_kind(reader), ()):
            return _Reading()
        return _Reading(f"{_kind(reader)} cannot read {kind}")

    def _of_union(self, writer: UnionSchema, reader: Schema) -> _Reading:
        if self._is_same(writer, reader, {}):
            return _Reading()
        return _Reading(parts=[(_kind(branch), self.resolve(branch, reader)) for branch in writer.schemas])

    def _of_fixed(self, writer: FixedSchema, reader: Any) -> _Reading:
        step = self._of_names(writer, reader)
        if not step.error and writer.size != reader.size:
            return _Reading(f"{reader.size} bytes cannot read {writer.size} bytes")
        return step

    def _of_names(self, writer: NamedSchema, reader: Any) -> _Reading:
        name = _last(self._name(writer))
        return _Reading() if name == reader.name else _Reading(f"{reader.name} cannot read {name}")

    def _of_record(self, writer: RecordSchema, reader: Any) -> _Reading:
        pair = (id(writer), id(reader))
        if pair in self._records:
            return self._records[pair]
        step = self._records[pair] = _Reading()  # also for references to the record within itself
        self._budget.step(len(writer.fields) + len(reader.fields))
        aliases = self._fields.get(self._name(writer), {})
        written = {aliases.get(one.name, one.name): one for one in writer.fields}
        read = {one.name: one for one in reader.fields}
        for name, one in written.items():
            if name in read:
                step.parts.append((name, self.resolve(one.type, read[name].type)))
        for name, one in read.items():
            if name not in written and not one.has_default:
                step.error = f"{name} was not written and has no default"
                break
        return step

    def _branch_for(self, writer: Schema, reader: UnionSchema) -> Schema | None:
        """Return the first type of the reader's union that matches: by name, then by structure, then by promotion."""
        kind = _kind(writer)
        if id(reader) not in self._branches:
            self._branches[id(reader)] = _Branches(reader)
        branches = self._branches[id(reader)]
        found: Schema | None = None
        if not isinstance(writer, NamedSchema):
            found = branches.first(kind)
        else:
            name = self._name(writer)
            found = branches.named.get((kind, name))
            if found is None and isinstance(writer, RecordSchema):
                found = self._similar(writer, _last(name), branches.of_kind.get(kind, []))
        if found is not None:
            return found
        return next((one for other, (one, *_) in branches.of_kind.items() if kind in _PROMOTIONS.get(other, ())), None)

    def _similar(self, writer: RecordSchema, name: str, records: list[Any]) -> Schema | None:
        """Return the last record of that name that reads the writer's, else the first of any name."""
        similar: Schema | None = None
        for record in records:
            self._budget.step()
            if not self._differs(writer, record):
                similar = record if similar is None or record.name == name else similar
        return similar

    def _differs(self, writer: RecordSchema, reader: Schema) -> bool:
        step = self._of_record(writer, reader)
        self._budget.step(len(step.parts))
        return bool(step.error) or any(part.error for _, part in step.parts)

    def _name(self, writer: NamedSchema) -> str:
        """Return the full name of a writer's type after the reader's aliases are applied."""
        name: str = writer.fullname
        return self._names.get(name, name)

    def _is_same(self, writer: Any, reader: Any, seen: dict[tuple[int, int], bool]) -> bool:
        """Return whether two types are the same but for namespaces, defaults and aliases."""
        self._budget.step()
        if _kind(writer) != _kind(reader):
            return False
        if isinstance(writer, NamedSchema) and _last(self._name(writer)) != reader.name:
            return False
        if isinstance(writer, FixedSchema):
            return bool(writer.size == reader.size)
        if isinstance(writer, EnumSchema):
            self._budget.step(len(writer.symbols))
            return list(writer.symbols) == list(reader.symbols)
        if isinstance(writer, RecordSchema):
            pair = (id(writer), id(reader))
            if pair not in seen:
                seen[pair] = True
                seen[pair] = len(writer.fields) == len(reader.fields) and all(
                    one.name == other.name and self._is_same(one.type, other.type, seen)
                    for one, other in zip(writer.fields, reader.fields, strict=True)
                )
            return seen[pair]
        inner, others = list(_inner(writer)), list(_inner(reader))
        return len(inner) == len(others) and all(
            self._is_same(one, other, seen) for one, other in zip(inner, others, strict=True)
        )

    def _collect_aliases(self, schema: Any, seen: set[int]) -> None:
        if isinstance(schema, NamedSchema):
            for alias in _aliases(schema):
                self._names[alias] = schema.fullname
        if isinstance(schema, RecordSchema):
            if id(schema) in seen:
                return
            seen.add(id(schema))
            for one in schema.fields:
                for alias in _texts(one.props.get("aliases")):
                    self._fields.setdefault(schema.fullname, {})[alias] = one.name
                self._collect_aliases(one.type, seen)
            for alias in _aliases(schema):
                if schema.fullname in self._fields:
                    self._fields[alias] = self._fields[schema.fullname]
        for inner in _inner(schema):
            self._collect_aliases(inner, seen)


def _first_error(top: _Reading) -> str:
    """Return the first error of the steps, and its place."""
    seen, waiting = {id(top)}, [("", top)]
    while waiting:
        place, step = waiting.pop()
        if step.error:
            return f"at {place or '/'}: {step.error}"
        for name, part in reversed(step.parts):
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append((f"{place}/{name}" if name else place, part))
    return ""


def _kind(schema: Schema) -> str:
    kind: str = schema.type
    return "record" if kind == "error" else kind


def _inner(schema: Any) -> Iterable[Schema]:
    if isinstance(schema, ArraySchema):
        return (schema.items,)
    if isinstance(schema, MapSchema):
        return (schema.values,)
    return schema.schemas if isinstance(schema, UnionSchema) else ()


def _aliases(schema: NamedSchema) -> list[str]:
    """Return the full names of a type's aliases."""
    namespace = schema.fullname.rpartition(".")[0]
    found = _texts(schema.props.get("aliases"))
    return [alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in found]


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _last(name: str) -> str:
    return name.rpartition(".")[2]

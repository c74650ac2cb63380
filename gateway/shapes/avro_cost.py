"""The cost of encoding a value with an Avro schema, counted before it is encoded.

The library tries every branch of a union, and within each branch every branch of the unions in it. A few hundred bytes
with a record that refers to itself can take longer than the process lives, and the library lets no other thread run.
"""

from __future__ import annotations

from typing import Any

from heliograph.base.errors import BadRequestError

TRIES_MAX = 50_000  # records, arrays and maps that are tried for one value: some 0.1 s
REQUEST_TRIES_MAX = 1_000_000  # the same for all values of one request, which are encoded on a thread


class AvroCost:
    """Counts the tries of the values of one request.

    Args:
        definition: a valid schema, as its JSON is read.
    """

    def __init__(self, definition: Any) -> None:
        self._definition = definition
        self._left = REQUEST_TRIES_MAX
        self._named: dict[str, Any] = {}  # full name -> schema and its namespace
        self._collect(definition, "")

    def renew(self) -> None:
        """Begin with the values of another request."""
        self._left = REQUEST_TRIES_MAX

    def check(self, value: Any, field: str) -> None:
        """Raise BadRequestError if there are more tries than TRIES_MAX, or too many in the request."""
        tries = _Count(self._named).tries(self._definition, "", value)
        self._left -= tries
        if tries > TRIES_MAX or self._left < 0:
            raise BadRequestError(
                f"{field} may be of too many types of the schema's unions: encode it and send bytes",
                field=field,
                limit=f"{TRIES_MAX} records, arrays and maps to try, {REQUEST_TRIES_MAX} in one request",
            )

    def _collect(self, schema: Any, namespace: str) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, namespace)
        elif isinstance(schema, dict):
            if "name" in schema:
                name = _full_name(schema, namespace)
                namespace = name.rpartition(".")[0]
                self._named[name] = (schema, namespace)
            for inner in (*(one["type"] for one in schema.get("fields", ())), *_inner(schema)):
                self._collect(inner, namespace)


class _Count:
    """The tries for one value, counted once for each pair of a type and a part of the value."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._known: dict[tuple[int, int], int] = {}

    def tries(self, schema: Any, namespace: str, value: Any) -> int:
        if not isinstance(value, dict | list):
            return 0
        if isinstance(schema, str):
            schema, namespace = self._named.get(
                schema if "." in schema else f"{namespace}.{schema}".lstrip("."), self._named.get(schema, ({}, ""))
            )
        key = (id(schema), id(value))
        if key not in self._known:
            if len(self._known) > TRIES_MAX:
                return TRIES_MAX + 1
            self._known[key] = 0  # a value does not contain itself
            self._known[key] = self._count(schema, namespace, value)
        return self._known[key]

    def _count(self, schema: Any, namespace: str, value: Any) -> int:
        if isinstance(schema, list):
            return sum(self.tries(branch, namespace, value) for branch in schema)
        if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            return self.tries(schema["type"], namespace, value)
        if not isinstance(schema, dict):
            return 0
        if "name" in schema:
            namespace = _full_name(schema, namespace).rpartition(".")[0]
        if isinstance(value, dict):
            fields = [(one["type"], value.get(one["name"])) for one in schema.get("fields", ())]
            fields += [(schema.get("values"), each) for each in value.values()] if "values" in schema else []
        else:
            fields = [(schema.get("items"), each) for each in value]
        return 1 + sum(self.tries(inner, namespace, each) for inner, each in fields)


def _full_name(schema: dict[str, Any], namespace: str) -> str:
    name = str(schema["name"])
    space = str(schema.get("namespace") or namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _inner(schema: dict[str, Any]) -> list[Any]:
    return [schema[part] for part in ("items", "values", "type") if isinstance(schema.get(part), dict | list)]

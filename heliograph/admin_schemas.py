"""Administration of a topic's schema: ``admin.schemas``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

Answer = dict[str, Any]
Call = Callable[..., Awaitable[Any]]


class Schemas:
    """The async form.

    Args:
        call: runs a method of the brokers' admin interface.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    async def get(self, topic: str, version: int | None = None) -> Answer:
        """One version, the newest by default: ``version``, ``type``, ``schema`` (text), ``data`` (base64), ...

        Raises:
            NotFoundError: the topic has no schema, or not that version.
        """
        return dict(await self._call("get_schema", topic, version))

    async def versions(self, topic: str) -> list[Answer]:
        """Every version since the last deletion, oldest first."""
        return list(await self._call("schema_versions", topic))

    async def put(self, topic: str, schema: Mapping[str, Any]) -> int:
        """Make a definition the newest version, unless the topic has it already; returns the version.

        Args:
            schema: ``type`` (such as ``AVRO``) with ``schema`` (text) or ``data`` (base64), ``name``, ``properties``.

        Raises:
            BadRequestError: it is malformed.
            IncompatibleSchemaError: it must not follow what is there.
        """
        return int(await self._call("put_schema", topic, dict(schema)))

    async def check(self, topic: str, schema: Mapping[str, Any]) -> Answer:
        """Whether ``put`` would take a definition: ``compatibility``, ``strategy``, ``reason``."""
        return dict(await self._call("check_schema", topic, dict(schema)))

    async def version_of(self, topic: str, schema: Mapping[str, Any]) -> int | None:
        """Which version a definition is; None when it is none of the topic's."""
        found = await self._call("schema_version", topic, dict(schema))
        return None if found is None else int(found)

    async def delete(self, topic: str) -> int:
        """Have the topic start anew without a schema; returns the version that stands for this.

        Raises:
            NotFoundError: it has none.
        """
        return int(await self._call("delete_schema", topic))


class SchemasSync:
    """The blocking form: the same methods.

    Args:
        run: runs a coroutine to its end.
    """

    def __init__(self, schemas: Schemas, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._schemas = schemas
        self._run = run

    def get(self, topic: str, version: int | None = None) -> Answer:
        """As ``Schemas.get``."""
        return dict(self._run(self._schemas.get(topic, version)))

    def versions(self, topic: str) -> list[Answer]:
        """As ``Schemas.versions``."""
        return list(self._run(self._schemas.versions(topic)))

    def put(self, topic: str, schema: Mapping[str, Any]) -> int:
        """As ``Schemas.put``."""
        return int(self._run(self._schemas.put(topic, schema)))

    def check(self, topic: str, schema: Mapping[str, Any]) -> Answer:
        """As ``Schemas.check``."""
        return dict(self._run(self._schemas.check(topic, schema)))

    def version_of(self, topic: str, schema: Mapping[str, Any]) -> int | None:
        """As ``Schemas.version_of``."""
        found = self._run(self._schemas.version_of(topic, schema))
        return None if found is None else int(found)

    def delete(self, topic: str) -> int:
        """As ``Schemas.delete``."""
        return int(self._run(self._schemas.delete(topic)))

"""Operations on the schemas of topics: ``admin.schemas``."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.operations.table import Answer, OperationGroup, Right, Scope, operation


class SchemaOperations(OperationGroup, group="schemas"):
    """A definition is given as text (``schema``) or in base64 (``data``), and shown as both."""

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME)
    async def get(self, topic: str, version: int | None = None) -> Answer:
        """Return one version of the schema, the newest by default.

        Returns:
            ``version``, ``type``, ``name``, ``timestamp`` (ms), ``schema``, ``data``, ``properties``.

        Raises:
            NotFoundError: the topic has no schema, or not that version.
        """

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME)
    async def versions(self, topic: str) -> list[Answer]:
        """Return every version since the last deletion, oldest first, each as ``get`` does."""

    @operation(Scope.TOPIC, Right.PRODUCE)
    async def put(self, topic: str, schema: Mapping[str, Any]) -> int:
        """Make a definition the newest version, unless the topic has it already; return its version.

        Args:
            schema: ``type`` (such as ``AVRO``) with ``schema`` or ``data``, and optionally ``name`` and ``properties``.

        Raises:
            BadRequestError: it is malformed.
            IncompatibleSchemaError: the topic's compatibility strategy forbids it after the present versions.
        """

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME)
    async def check(self, topic: str, schema: Mapping[str, Any]) -> Answer:
        """Return whether ``put`` would accept a definition: ``compatibility``, ``strategy``, ``reason``."""

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME)
    async def version_of(self, topic: str, schema: Mapping[str, Any]) -> int | None:
        """Return the version that has this definition, or None when no version of the topic has it."""

    @operation(Scope.TOPIC, Right.PRODUCE)
    async def delete(self, topic: str) -> int:
        """Delete the topic's schema; return the version that stands for the deletion.

        Raises:
            NotFoundError: it has none.
        """

"""The interface of schemas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeAlias

from heliograph.client.types import Value
from heliograph.protocol.schema import SchemaInfo

SchemaLike: TypeAlias = "type[Value] | Schema[Value] | None"  # what callers pass as ``schema=``
DecodeValue: TypeAlias = Callable[[bytes], Any]


class Schema(ABC, Generic[Value]):
    """How the values of a topic become bytes and come back.

    A handle takes one as ``schema=``. It has to be picklable, as the handle is. Type checkers know the values of a
    handle by the parameter: ``Schema[Order]`` has values of the type ``Order``.
    """

    @property
    def info(self) -> SchemaInfo | None:
        """The definition that the topic's registry stores; None registers nothing, and the messages are bytes to it."""
        return None

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties that each message gets besides its own."""
        return {}

    @abstractmethod
    def encode(self, value: Value) -> bytes:
        """Return the payload of a value.

        Raises:
            BadRequestError: The value does not fit the schema.
        """

    @abstractmethod
    def decoder(self, written: SchemaInfo | None) -> Callable[[bytes], Value]:
        """Return what decodes payloads that were written with a schema; None: with none that the registry has.

        The returned function raises ProtocolError for a payload that does not fit.

        Raises:
            ProtocolError: Values of that schema cannot be shown as this one's.
            ResourceError: A package that decodes the values is not installed; names it.
        """

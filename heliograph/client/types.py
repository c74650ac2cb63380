"""Types of the arguments that callers pass to handles, and of the values that pass through them.

A handle is generic in its values, as its ``schema=`` says: ``Producer[Order]`` takes what ``Consumer[Order]`` returns.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from typing_extensions import TypeVar

Payload: TypeAlias = bytes | bytearray | memoryview | str  # what a producer takes without a schema
SubscriptionType: TypeAlias = Literal["exclusive", "shared", "failover", "key_shared"]
InitialPosition: TypeAlias = Literal["latest", "earliest"]
AccessMode: TypeAlias = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
Rejoin: TypeAlias = Literal["at_once", "when_sending"]
Hashing: TypeAlias = Literal["java", "murmur3"]
Compression: TypeAlias = Literal["none", "lz4", "zlib", "zstd", "snappy"]

# Of classes; a class that is named without values has any.
Value = TypeVar("Value", default=Any)
Sent = TypeVar("Sent", default=Any, contravariant=True)
Received = TypeVar("Received", default=Any, covariant=True)
# Of the functions that make handles: what ``schema=`` names, and what a handle without a schema has.
ToSend = TypeVar("ToSend", default=Payload)
ToReceive = TypeVar("ToReceive", default=bytes)

"""Types of the arguments that callers pass to handles."""

from __future__ import annotations

from typing import Literal, TypeAlias

Value: TypeAlias = bytes | bytearray | memoryview | str
SubscriptionType: TypeAlias = Literal["exclusive", "shared", "failover", "key_shared"]
InitialPosition: TypeAlias = Literal["latest", "earliest"]
AccessMode: TypeAlias = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
Rejoin: TypeAlias = Literal["at_once", "when_sending"]
Hashing: TypeAlias = Literal["java", "murmur3"]
Compression: TypeAlias = Literal["none", "lz4", "zlib", "zstd", "snappy"]

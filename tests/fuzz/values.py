"""Values that programs get wrong, by type. Pure."""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack

UNSIGNED = (0, 1, 2, 7, 127, 128, 255, 65_535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 48) - 1, 1 << 48,
            (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
SIGNED = (-(1 << 63), -(1 << 63) + 1, -(1 << 31) - 1, -(1 << 31), -65_536, -129, -128, -8, -2, -1,
          *(number for number in UNSIGNED if number < 1 << 63))  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, 1.5, -1.5, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan"))
HUGE_BYTES = 100_000
TEXTS = (
    "", " ", "a", "/", "//", ".", "..", "../..", "/a/../b", "a/b/c/d/e", "persistent://", "non-persistent://a/b/c",
    "persistent://public/default/x-partition--1", "persistent://public/default/x-partition-99999999999999999999",
    "public/default", "__change_events", "[", "(a+)+$", ".*", "%00", "%2F", "%", "\x00", "a\x00b", "\n", "\r\n", "ä",
    "\u202e", "\ufeff", "\U0010ffff", "é́" * 50, "null", "true", "-1", "1e309", "NaN", "0x10", "{}", "\ud800",
    "' OR 1=1", "${jndi:x}", "%s%n", "latest", "earliest", "x" * 300, "/x" * 200, "x" * HUGE_BYTES,
)  # fmt: skip
INVALID_UTF8 = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"a\x80b", b"\xe2\x82")


def number(random: Random) -> int:
    """Return a signed number of at most 64 bits, or an unsigned one."""
    if random.random() < 0.2:
        return random.getrandbits(random.randint(1, 64))
    return random.choice((*SIGNED, *UNSIGNED))


def text(random: Random) -> str:
    """Return a text, which may have half of a surrogate pair."""
    return random.choice(TEXTS)


def octets(random: Random) -> bytes:
    """Return bytes, often not UTF-8."""
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(INVALID_UTF8)
    if kind == 1:
        return random.randbytes(random.choice((0, 1, 3, 16, 17, 200, 3_000)))
    return text(random).encode("utf-8", "surrogatepass")


def msgpack_value(random: Random, depth: int = 3) -> Any:
    """Return a value of any type that msgpack has."""
    kind = random.randrange(12)
    if kind <= 3:
        return number(random)
    if kind == 4:
        return random.choice(FLOATS)
    if kind == 5:
        return random.choice((True, False, None))
    if kind == 6:
        return text(random)
    if kind == 7:
        return octets(random)
    if kind == 8 and depth:
        return {random.choice(("a", 1, b"k")): msgpack_value(random, depth - 1)}
    if kind == 9:
        return random.choice((msgpack.ExtType(random.randrange(128), octets(random)[:100]), msgpack.Timestamp(2, 0)))
    return [msgpack_value(random, depth - 1) for _ in range(random.randrange(4))] if depth else []


def json_value(random: Random, depth: int = 3) -> Any:
    """Return a value of any type that JSON has, and numbers that it has not."""
    kind = random.randrange(9)
    if kind <= 2:
        return number(random) if random.random() < 0.9 else 10**400
    if kind == 3:
        return random.choice(FLOATS)
    if kind == 4:
        return random.choice((True, False, None))
    if kind <= 6 or not depth:
        return text(random)
    if kind == 7:
        return {text(random)[:50]: json_value(random, depth - 1) for _ in range(random.randrange(3))}
    return [json_value(random, depth - 1) for _ in range(random.randrange(3))]

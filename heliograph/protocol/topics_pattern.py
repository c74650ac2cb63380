"""Regular expressions that clients choose topics by, run by RE2 in linear time and bounded memory; the hash of a list
of topics (pure).

The syntax is RE2's. Syntax without a linear match, such as look-ahead and back references, is not supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import crc32c
import re2

from heliograph.base.errors import UnsupportedError

PATTERN_CHARACTERS_MAX = 1_000
PATTERN_BYTES_MAX = 1 << 20  # memory of a compiled expression and of its matching; RE2 refuses or slows down above it

PREFIX_BYTES_MAX = 256  # of what all matches of an expression begin with

_OPTIONS = re2.Options()
_OPTIONS.max_mem = PATTERN_BYTES_MAX
_OPTIONS.log_errors = False  # to stderr: a client could fill a disk with it
_OPTIONS.never_capture = True  # groups are not asked for, and cost time


class TopicsPattern:
    """One expression, which has to match the whole name.

    Raises:
        UnsupportedError: the expression is too long or too complex, or has a form that is not supported.
    """

    def __init__(self, expression: str) -> None:
        if len(expression) > PATTERN_CHARACTERS_MAX:
            raise UnsupportedError(
                "the pattern is too long", field="topicsPattern", limit=f"{PATTERN_CHARACTERS_MAX} characters"
            )
        try:
            self._expression = re2.compile(_without_domain(expression), _OPTIONS)
        except (re2.error, UnicodeEncodeError) as error:
            raise UnsupportedError(
                f"the pattern is no regular expression of RE2: {_reason(error)}", field="topicsPattern"
            ) from error

    def matches(self, name: str) -> bool:
        return self._expression.fullmatch(name) is not None

    @property
    def prefix(self) -> str:
        """Return what every name that matches begins with; empty if there is no such beginning, or none is known."""
        try:
            least, most = self._expression.possiblematchrange(PREFIX_BYTES_MAX)
        except re2.error:
            return ""
        same = bytes(each for each, _ in takewhile(lambda pair: pair[0] == pair[1], zip(least, most, strict=False)))
        return same.decode("utf-8", "ignore")  # the last character may be cut


def topics_hash(names: Sequence[str]) -> str:
    """Return the hash by which brokers and clients recognise a list of topics: the bytes of the CRC-32C of the sorted
    names, lowest first, in hexadecimal."""
    return crc32c.crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


def _without_domain(expression: str) -> str:
    """Return the expression without the domain that clients put in front: names are matched without theirs."""
    _, separator, rest = expression.partition("://")
    return rest if separator else expression


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(error)

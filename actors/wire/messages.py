"""Requests to bookies and their answers (docs/formats.md, "Bookie protocol").

The header of a frame is a msgpack array whose fields are those of the classes below, in order. The body is raw bytes;
an entry's bytes are those of ``actors/wire/entry.py``, which carry their own checksum. The first frame on a connection
is a HELLO in either direction. Requests may be answered in any order.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

PROTOCOL_VERSION = 1
# Features of this end beyond the first release, which has none (0). 1: ADDS, and answers to runs of adds. 2: LACS.
# 3: HEADS
REVISION = 3
TLS_SCHEME = "tls://"  # before the address of a bookie that speaks TLS
NUMBER_MAX = (1 << 63) - 1  # of a ledger id, a request id or a LAC
LEDGER_ENTRIES_MAX = 1 << 48  # entry ids are below it: a ledger that gets a million a second for nine years
READ_LIMIT_BYTES_MAX = (1 << 31) - 1  # of the ``limit`` of a request
HEAD_BYTES = 512  # of an entry's payload in an answer to HEADS
LIST_RUNS_MAX = 100_000  # in one answer to LIST_ENTRIES; after so many, the client asks from the next entry on


class BookieOp(enum.IntEnum):
    """First field of a request header."""

    # ledger_id is the protocol version, limit the number of the client's release (0: not said), last_add_confirmed of
    # the answer that of the bookie's (-1: not said); body: none, a nonce or a proof. entry_id is the client's revision
    # (-1: not said), the body of an OK answer the bookie's, as one byte
    HELLO = 0
    ADD = 1  # body: the entry
    READ = 2  # answer body: the entry
    READ_BATCH = 3  # answer body: entries, each after its u32 length
    READ_LAC = 4  # answer body: the stored entry with the highest LAC, or none
    LIST_ENTRIES = 5  # answer body: msgpack array of [first, last] runs of entry ids stored
    STATISTICS = 6  # answer body: msgpack map
    WRITE_LAC = 7  # explicit LAC: entry_id is the LAC; body: none
    # 8 was LONG_POLL_LAC, which no client used: the number is not given to another op
    # request_id is that of the first entry, the others follow it; limit: how many; body: entries, each after its u32
    # length. Answers: as to an ADD for each, or one for a run of them
    ADDS = 9
    LACS = 10  # explicit LACs; limit: how many; body: ledger id and LAC of each. It is not answered


class Flag(enum.IntFlag):
    """Modifiers of a request."""

    NONE = 0
    RECOVERY = 1  # an add by recovery or repair: accepted on fenced ledgers and by read-only bookies
    FENCE = 2  # a read that fences the ledger durably before it is answered
    HIGH_PRIORITY = 4
    HEADS = 8  # a READ_BATCH of the first HEAD_BYTES of each entry's payload


class Status(enum.IntEnum):
    """Second field of an answer header."""

    OK = 0
    NO_LEDGER = 1  # explicit negative: this bookie never acknowledged anything of the ledger (I6)
    NO_ENTRY = 2  # explicit negative: this bookie never acknowledged the entry (I6)
    BAD_REQUEST = 3
    STORAGE_ERROR = 4  # nothing may be concluded
    UNAUTHORIZED = 5
    BAD_VERSION = 6
    FENCED = 7
    READ_ONLY = 8
    TOO_MANY_REQUESTS = 9
    UNKNOWN_LEDGER_STATE = 10  # limbo: "no" would be a guess
    DAMAGED = 11  # the add's checksum is wrong: not stored
    CHALLENGE = 12  # to a HELLO: the client must prove that it knows the cluster's secret


class BookieRequest(NamedTuple):  # a frozen dataclass takes three times as long to create, for every entry
    """The header of a request.

    READ_BATCH asks for the entries ``entry_id`` to ``last_entry_id``, at most ``limit`` bytes but at least one entry.
    """

    op: BookieOp
    request_id: int
    ledger_id: int = -1
    entry_id: int = -1
    flags: Flag = Flag.NONE
    limit: int = 0
    last_entry_id: int = -1


class Answer(NamedTuple):
    """The header of an answer.

    ``last_add_confirmed`` is the highest LAC of the ledger that the bookie knows, -1 for none. ``text`` describes an
    error.
    """

    request_id: int
    status: Status
    last_add_confirmed: int = -1
    text: str = ""

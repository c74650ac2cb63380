"""What brokers, auditors and readers say to bookies, and what these answer (docs/formats.md, "Bookie protocol").

A frame is ``u32 length | u16 header length | u32 CRC32C of header | header | body``; the length counts all after
itself. The header is a msgpack array whose fields are given by the classes below, in order; the body is raw bytes
(for entries: the bytes of ``actors/wire/entry.py``, which carry their own checksum). The first frame on a connection
is a Hello in either direction. Requests may be answered in any order.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

PROTOCOL_VERSION = 1
LIST_RUNS_MAX = 100_000  # in one answer to LIST_ENTRIES; with so many, the rest is asked for from the next entry on


class Op(enum.IntEnum):
    """First field of a request header."""

    HELLO = 0  # body: none
    ADD = 1  # body: the entry
    READ = 2  # answer body: the entry
    READ_BATCH = 3  # answer body: entries, each after its u32 length
    READ_LAC = 4  # answer body: the stored entry with the highest LAC, or none
    LIST_ENTRIES = 5  # answer body: msgpack array of [first, last] runs of entry ids stored
    STATISTICS = 6  # answer body: msgpack map
    WRITE_LAC = 7  # explicit LAC: body none, entry_id is the LAC
    LONG_POLL_LAC = 8  # answers when the LAC is above entry_id, or after the time in `limit` ms


class Flag(enum.IntFlag):
    """Modifiers of a request."""

    NONE = 0
    RECOVERY = 1  # an add by recovery or replication: accepted on fenced ledgers and read-only bookies
    FENCE = 2  # a read that fences the ledger first, durably, before any answer
    HIGH_PRIORITY = 4


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
    CHALLENGE = 12  # to a HELLO: prove that you know the cluster's secret (actors/wire/handshake.py)


class Request(NamedTuple):  # tuples: a frozen dataclass takes three times as long to make, for every entry
    """Header ``[op, request_id, ledger_id, entry_id, flags, limit]``.

    ``limit``: for READ_BATCH the bytes wanted at most (at least one entry is sent); ``entry_id`` is the first wanted
    and ``last_entry_id`` the last.
    """

    op: Op
    request_id: int
    ledger_id: int = -1
    entry_id: int = -1
    flags: Flag = Flag.NONE
    limit: int = 0
    last_entry_id: int = -1


class Answer(NamedTuple):
    """Header ``[request_id, status, last_add_confirmed, text]``; ``last_add_confirmed`` is the highest LAC known to the
    bookie for the ledger (-1: none), ``text`` says more of an error."""

    request_id: int
    status: Status
    last_add_confirmed: int = -1
    text: str = ""

"""Ids of server-sent events: how far a page has read a topic, and what was deleted meanwhile. No I/O.

An id is the message id of the last message that was sent, with its index in its batch. Of a partitioned topic it has
one for each partition, separated by commas; a partition that it lacks, because it was added later, is read from its
beginning. Pages send the id back, so it is checked like any other input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph.base.errors import InvalidMessageIdError
from heliograph.protocol.message_id import MessageId

PARTITIONS_MAX = 64  # of one stream of events, whose ids are sent with each event # I15


def event_id(read: Mapping[int, MessageId]) -> str:
    """Return the id of an event, for how far each partition was read."""
    return ",".join(str(read[partition]) for partition in sorted(read))


def positions_of(text: str, partitions: Sequence[int], field: str) -> dict[int, MessageId]:
    """Return after which message of each partition a page goes on reading.

    Args:
        text: from ``event_id``.
        partitions: of the topic; -1 alone if it is not partitioned.

    Raises:
        InvalidMessageIdError: it is no such id, or is of another topic; names the field.
    """
    read = dict.fromkeys(partitions, MessageId.EARLIEST)
    parts = text.split(",")
    if len(parts) > PARTITIONS_MAX:
        raise InvalidMessageIdError(f"the id has {len(parts)} parts", field=field, limit=f"{PARTITIONS_MAX} partitions")
    for part in parts:
        try:
            found = MessageId.parse(part)
        except InvalidMessageIdError as error:
            raise InvalidMessageIdError(f"{text[:100]!r} is no id of an event: {error}", field=field) from error
        if found.partition not in read or found == MessageId.LATEST:
            raise InvalidMessageIdError(f"{text[:100]!r} is no id of an event of this topic", field=field)
        read[found.partition] = found
    return read


def lost_after(read: MessageId, ledgers: Sequence[int], trimmed: Mapping[int, int]) -> int | None:
    """Return how many entries after a position were deleted; None if that is not known.

    Args:
        ledgers: the ids of the ledgers that the topic has.
        trimmed: the entries of its ledgers that were deleted last.
    """
    if read.ledger_id < 0 or read.ledger_id in ledgers:
        return 0
    if read.ledger_id not in trimmed:
        return None
    later = sum(entries for ledger_id, entries in trimmed.items() if ledger_id > read.ledger_id)
    return later + max(0, trimmed[read.ledger_id] - read.entry_id - 1)

"""Offsets of a stream as Spark stores them, ``{"<topic or partition>": "<ledger>:<entry>"}``: what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.planning.ranges import LedgerRange, Position, narrow
from heliograph.protocol.topic_name import TopicName

Offsets = dict[str, Position]  # by the full name of a topic without partitions, or of a partition


def position_of(text: object) -> Position:
    """Return the position in a text ``ledger:entry``.

    Raises:
        BadRequestError: it is none.
    """
    ledger_id, _, entry_id = str(text).partition(":")
    if not (ledger_id.isdecimal() and entry_id.isdecimal()):
        raise BadRequestError(f"{text!r} is no position", field="offsets", limit="ledger:entry")
    return int(ledger_id), int(entry_id)


def offsets_from_json(stored: Mapping[str, object]) -> Offsets:
    """Return offsets from what Spark stored.

    Raises:
        BadRequestError: it is something else.
    """
    return {topic: position_of(text) for topic, text in stored.items()}


def offsets_to_json(offsets: Mapping[str, Position]) -> dict[str, str]:
    return {topic: f"{ledger_id}:{entry_id}" for topic, (ledger_id, entry_id) in sorted(offsets.items())}


def of_topic(offsets: Mapping[str, Position], topic: TopicName) -> dict[int, Position]:
    """Return the offsets of one topic by partition; -1 stands for a topic without partitions."""
    found = {}
    for text, position in offsets.items():
        name = TopicName.parse(text)
        if name.partitioned_name == str(topic):
            found[name.partition] = position
    return found


def offsets_after(offsets: Mapping[str, Position], ranges: Iterable[LedgerRange]) -> Offsets:
    """Return the offsets behind all of ``ranges``, which come in order for each partition."""
    after = dict(offsets)
    for piece in ranges:
        after[piece.topic] = (piece.ledger_id, piece.last_entry_id + 1)
    return after


def limited(ranges: Sequence[LedgerRange], entries_max: int | None, bytes_max: int | None) -> list[LedgerRange]:
    """Return the first part of ``ranges`` for one micro-batch, shared fairly by the partitions.

    It has at most ``entries_max`` entries and about ``bytes_max`` bytes, but at least one entry if there is any.
    """
    if entries_max is None and bytes_max is None:
        return list(ranges)
    topics = list(dict.fromkeys(piece.topic for piece in ranges))
    entries_left = float("inf") if entries_max is None else entries_max
    bytes_left = float("inf") if bytes_max is None else bytes_max
    chosen: list[LedgerRange] = []
    for index, topic in enumerate(topics):
        entries_share = max(1, entries_left // (len(topics) - index))
        bytes_share = bytes_left // (len(topics) - index)
        for piece in (piece for piece in ranges if piece.topic == topic):
            fits = min(piece.entries, entries_share, entries_left, bytes_share // piece.entry_bytes)
            count = int(max(fits, 0 if chosen else 1))
            if count == 0:
                break
            taken = narrow(piece, piece.first_entry_id, piece.first_entry_id + count - 1)
            chosen.append(taken)
            size = taken.entries * piece.entry_bytes
            entries_share, entries_left = entries_share - count, entries_left - count
            bytes_share, bytes_left = bytes_share - size, bytes_left - size
            if count < piece.entries:
                break
    return chosen

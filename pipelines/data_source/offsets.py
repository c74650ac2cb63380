"""Offsets of a stream as Spark stores them, ``{"<topic or partition>": "<ledger>:<entry>"}``: what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.planning.ranges import LedgerRange, Position
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

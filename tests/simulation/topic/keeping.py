"""Checks of what leaves a topic without an acknowledgement: by age, by a quota, by retention and by compaction.

They read the store and the bookies' disks, and share no code with the broker.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from heliograph.actors.broker.records.position import Position
from heliograph.metadata.model import LedgerInfo, TopicRecord
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import broker_metadata_of, encode_entry, iterate_batch, split
from tests.simulation.checkers.judge import COMPACTION, LIVENESS, Judge
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.store import TOPIC, Change, SimulatedStore

if TYPE_CHECKING:
    from tests.simulation.topic.broker import TopicBroker

COMPACTED = "compacted"  # the subscription that reads the compacted form
LABEL = "label"  # property of an entry whose payload is a real batch: what it is called
Entries = Sequence[tuple[Position, bytes]]
Message = tuple[str, str | None]  # key, value; None deletes the key


class Keeping:
    """The entries that left a topic, and whether they might."""

    def __init__(self, store: SimulatedStore, judge: Judge, bookies: Mapping[str, SimulatedBookie]) -> None:
        self.gone: list[tuple[Position, bytes]] = []  # that were trimmed, in order
        self.trimmed: set[int] = set()  # their ledgers
        self.never_compacted: set[int] = set()  # those of them that were trimmed before the first compaction
        self._store = store
        self._judge = judge
        self._bookies = bookies
        store.watchers.append(self._on_ledger)

    def entry_at(self, position: Position) -> bytes | None:
        """Return an entry from a sound copy on any disk, None if there is none."""
        for bookie in self._bookies.values():
            for image in (bookie.disk, bookie.memory):
                copy = image.copy_of(*position)
                if copy is not None and not copy.is_damaged:
                    return copy.payload
        return None

    # -- ledgers

    def _on_ledger(self, change: Change) -> None:
        """Check that a ledger that is deleted is in use by nobody."""
        if change.after is not None or change.before is None:
            return
        ledger_id, record = change.before.ledger_id, self._store.topic().record
        named = {info.ledger_id for info in self._store.chain(record)}
        if record.compacted is not None:
            named.add(record.compacted.ledger_id)
        self._judge.require(ledger_id not in named, "I14", f"{change.author} deletes ledger {ledger_id}, which is used")

    def on_trimmed(
        self,
        broker: TopicBroker,
        before: TopicRecord,
        gone: Sequence[LedgerInfo],
        needs: Callable[[Position], str],
    ) -> None:
        """Check that ledgers with entries might leave the head of the chain, and keep what is in them.

        Args:
            needs: returns the name of a subscription that still needs an entry, "" if none does.
        """
        require, old = self._judge.require, [info for info in self._store.chain(before) if info.entries]
        text = f"{broker.name} trims {[info.ledger_id for info in gone]}"
        require(old[: len(gone)] == list(gone), "I14", f"{text}, which are not the oldest")
        require(all(info.closed_ms for info in gone), "I14", f"{text}, which are not closed")
        if before.compacted is None and broker.topic is not None:
            require("__compaction" not in broker.topic.subscriptions, "I14", f"{text}, which are not compacted yet")
        size = sum(info.size for info in old)
        for info in gone:
            may_go = any(
                (0 <= one.retention_seconds <= (max(broker.wall_ms(), broker.latest_wall_ms) - info.closed_ms) / 1000)
                or (0 <= one.retention_bytes <= size - info.size)
                for one in broker.in_force
            )
            require(may_go, "I14", f"{text}, and retention keeps {info.ledger_id}")
            size -= info.size
            self.trimmed.add(info.ledger_id)
            if before.compacted is None:
                self.never_compacted.add(info.ledger_id)
            for entry_id in range(info.entries):
                position = Position(info.ledger_id, entry_id)
                place = f"{info.ledger_id}:{entry_id}"
                require(not (name := needs(position)), "I14", f"{text}, and {name} needs {place}")
                if before.compacted is not None:
                    is_read = position <= before.compacted.horizon
                    require(is_read, "I14", f"{text}, and {place} is not compacted yet")
                entry = self.entry_at(position)
                require(entry is not None, "I1", f"no bookie has {place}, which {broker.name} trims")
                self.gone.append((position, entry or b""))
        self._store.world.count("ledger trimmed", len(gone))
        self._store.world.count("ledger trimmed out of a piece", bool(before.pieces))

    def check_orphans(self) -> None:
        """Check that after a sweep every ledger is named by a record of the topic."""
        names = [TOPIC, *(f"{TOPIC}/{name}" for name in self._store.tree.children(TOPIC))]
        named = {int(n) for path in names for n in re.findall(rb"\d+", self._store.tree.node(path).value or b"")}
        orphans = [ledger_id for ledger_id in self._store.ledgers() if ledger_id not in named]
        self._judge.require(not orphans, LIVENESS, f"nothing names the ledgers {orphans}, and the sweep left them")

    # -- ages and quotas

    def may_expire(self, broker: TopicBroker, position: Position) -> bool:
        """Whether an entry was stored so long ago by the broker's clock that it counts as acknowledged, or may be
        evicted by a quota."""
        entry = self.entry_at(position)
        if entry is None:
            return False
        age_ms = max(broker.wall_ms(), broker.latest_wall_ms) - broker_metadata_of(entry).broker_timestamp
        return any(
            0 < one.message_ttl_seconds < age_ms / 1000
            or 0 <= one.backlog_quota_seconds < age_ms / 1000
            or one.backlog_quota_bytes >= 0
            for one in broker.in_force
        )

    # -- the compacted form

    def check_view(self, name: str, table: Mapping[str, str], log: Iterable[tuple[Position, bytes]]) -> None:
        """Check that a reader of the compacted form has the newest value of each key, and no deleted key."""
        newest: dict[str, str] = {}
        for _, section in log:
            put(newest, section)
        wrong = sorted(key for key in {*table, *newest} if table.get(key) != newest.get(key))
        text = [f"{key}: {table.get(key)} for {newest.get(key)}" for key in wrong[:2]]
        self._judge.require(not wrong, COMPACTION, f"{name} sees {text}")


def label_of(section: bytes) -> str:
    """Return what an entry is called: "producer:number"."""
    metadata, payload = split(section)
    found = [one.value for one in metadata.properties if one.key == LABEL]
    return found[0] if found else bytes(payload).decode()


def messages_of(section: bytes | memoryview) -> Iterator[Message | None]:
    """Yield the messages of an entry. None for those without a key, and for those that compaction emptied."""
    metadata, payload = split(section)
    if not metadata.HasField("num_messages_in_batch"):
        yield metadata.partition_key, None if metadata.null_value else label_of(bytes(section))
        return
    for single, value in iterate_batch(metadata, bytes(payload)):
        has_message = single.HasField("partition_key") and not single.compacted_out
        yield (single.partition_key, None if single.null_value else bytes(value).decode()) if has_message else None


def keys_of(section: bytes | memoryview) -> list[str]:
    """Return the key of each message of an entry."""
    metadata, payload = split(section)
    if not metadata.HasField("num_messages_in_batch"):
        return [metadata.partition_key]
    return [single.partition_key for single, _ in iterate_batch(metadata, bytes(payload))]


def put(table: dict[str, str], section: bytes | memoryview) -> None:
    """Put the messages of an entry into a table of values by key."""
    for message in messages_of(section):
        if message is None:
            continue
        key, value = message
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value


def encoded(metadata: pb.MessageMetadata, label: str, keys: Sequence[str], deletes: Collection[int]) -> bytes:
    """Return the entry of a message, or of a batch if there are several keys.

    Args:
        deletes: the messages, by their place, that delete their key.
    """
    if len(keys) == 1:
        metadata.null_value = 0 in deletes
        return encode_entry(metadata, label.encode())
    metadata.properties.add(key=LABEL, value=label)
    parts = []
    for place, key in enumerate(keys):
        value = f"{label}/{place}".encode()
        single = pb.SingleMessageMetadata(partition_key=key, payload_size=len(value), null_value=place in deletes)
        packed = single.SerializeToString()
        parts += [struct.pack(">I", len(packed)), packed, value]
    plain = b"".join(parts)
    metadata.uncompressed_size = len(plain)
    return encode_entry(metadata, plain)

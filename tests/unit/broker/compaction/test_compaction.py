"""Compaction: what is kept of each key, the chain that readers of the compacted form see, and whole runs on ledgers in
memory. No bookies; nothing sleeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.broker.compaction.chain import CompactedChain, Positions
from heliograph.actors.broker.compaction.compactor import Compaction, CompactionStatus
from heliograph.actors.broker.compaction.plan import CompactionPlan, live_bits
from heliograph.actors.broker.compaction.record import (
    INDEX_POSITIONS_MAX,
    decode_index,
    decode_kept,
    encode_index,
    encode_kept,
    index_blocks,
)
from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_record import deletable_ledgers
from heliograph.actors.broker.subscription.setting import ConsumerSetting
from heliograph.actors.errors import EntryDamagedError
from heliograph.base.errors import ConflictError, PersistenceError, QuotaExceededError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, encode_single, full_head
from heliograph.protocol.compression import compress
from heliograph.protocol.entry import encode_entry, iterate_batch, plain_payload, split
from tests.unit.broker.world import Outcomes, World, turns

Message = tuple[str | None, bytes]  # key and value
NO_DELETIONS = 1 << 62  # the first entry whose deletions are kept
CODECS = [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)


def single(message: Message) -> bytes:
    key, value = message
    return encode_single(metadata(), full_head(len(value), key, None, None), value)


def batch(messages: list[Message], codec: pb.CompressionType = pb.NONE) -> bytes:
    heads = [full_head(len(value), key, {"n": "1"}, 7) for key, value in messages]
    payloads = [value for _, value in messages]
    plain = encode_batch(metadata(), heads, payloads)
    if codec == pb.NONE:
        return plain
    head, payload = split(plain)  # encode_batch does not compress what is as small as here
    head.compression = codec
    return encode_entry(head, compress(codec, bytes(payload)))


def shown(section: bytes | memoryview) -> list[tuple[str, bytes]]:
    """Return the keys and values that a consumer of the compacted entry gets."""
    head, payload = split(section)
    if not head.HasField("num_messages_in_batch"):
        return [(head.partition_key, bytes(payload))]
    messages = iterate_batch(head, plain_payload(head, payload))
    return [(one.partition_key, value) for one, value in messages if not one.compacted_out]


def compacted(sections: list[bytes]) -> list[tuple[str, bytes]]:
    plan = CompactionPlan(NO_DELETIONS)
    for index, section in enumerate(sections):
        plan.observe(index, section)
    left = [plan.retained(index, section) for index, section in enumerate(sections)]
    return [message for section in left if section is not None for message in shown(section)]


def naive(messages: list[Message]) -> dict[str, bytes]:
    latest: dict[str, bytes] = {}
    for key, value in messages:
        if key is not None:
            latest.pop(key, None)
            if value:
                latest[key] = value
    return latest


KEYED = st.tuples(st.none() | st.sampled_from("abcde"), st.sampled_from([b"", b"1", b"22", b"333"]))
ENTRIES = st.lists(st.tuples(st.booleans(), st.lists(KEYED, min_size=1, max_size=5), st.sampled_from(CODECS)))


@given(ENTRIES)
def test_the_latest_value_of_each_key_is_kept(entries: list[tuple[bool, list[Message], Any]]) -> None:
    sections, messages = [], []
    for is_batch, group, codec in entries:
        group = group if is_batch else group[:1]
        messages += group
        sections.append(batch(group, codec) if is_batch else single(group[0]))
    assert list(naive(messages).items()) == compacted(sections)


@given(ENTRIES, ENTRIES)
def test_compacting_what_was_compacted_changes_nothing(first: Any, second: Any) -> None:
    """A later run reads what the run before kept, then what came since."""
    old = [batch(group, codec) for _, group, codec in first]
    new = [batch(group, codec) for _, group, codec in second]
    plan = CompactionPlan(NO_DELETIONS)
    for index, section in enumerate(old):
        plan.observe(index, section)
    kept = [bytes(left) for index, section in enumerate(old) if (left := plan.retained(index, section)) is not None]
    assert compacted(kept + new) == compacted(old + new)


@pytest.mark.parametrize("codec", CODECS, ids=pb.CompressionType.Name)
def test_what_is_left_of_a_batch_keeps_its_places(codec: pb.CompressionType) -> None:
    sections = [batch([("a", b"1"), ("b", b"2"), ("c", b"3")], codec), single(("b", b"9"))]
    plan = CompactionPlan(NO_DELETIONS)
    for index, section in enumerate(sections):
        plan.observe(index, section)
    left = plan.retained(0, sections[0])
    assert left is not None
    head, payload = split(left)
    messages = list(iterate_batch(head, plain_payload(head, payload)))
    assert [(one.compacted_out, value) for one, value in messages] == [(False, b"1"), (True, b""), (False, b"3")]
    assert messages[0][0].properties[0].key == "n"
    assert (messages[0][0].event_time, head.compression) == (7, codec)


def test_markers_go_and_opaque_batches_stay() -> None:
    hidden = metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    opaque = encode_batch(hidden, [full_head(1, "a", None, None)], [b"1"])
    marker = encode_single(metadata(marker_type=1), full_head(1, "a", None, None), b"1")
    plan = CompactionPlan(NO_DELETIONS)
    for index, section in enumerate((opaque, marker, single(("a", b"2")))):
        plan.observe(index, section)
    assert plan.retained(0, opaque) == opaque
    assert plan.retained(1, marker) is None


def unreadable_batches() -> dict[str, bytes]:
    """Return batches of the key "a" that nobody but their producer, or nobody at all, can read."""
    payload = b"".join((full_head(1, "a", None, None), b"1"))
    sizes = {"num_messages_in_batch": 1, "uncompressed_size": len(payload)}
    unknown = metadata(**sizes, compression=pb.LZ4).SerializeToString()
    place = unknown.index(bytes([0x40, pb.LZ4]))  # the number and the value of the field
    return {
        "encrypted": encode_entry(metadata(**sizes, encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]), b"?"),
        "damaged": encode_entry(metadata(**sizes, compression=pb.LZ4), b"not lz4 at all"),
        "cut short": encode_entry(metadata(num_messages_in_batch=2, uncompressed_size=len(payload)), payload),
        "unknown codec": encode_entry(
            pb.MessageMetadata.FromString(unknown[:place] + b"\x40\x2a" + unknown[place + 2 :]), payload
        ),
    }


@pytest.mark.parametrize("name", unreadable_batches())
def test_batches_that_cannot_be_read_stay_and_take_nothing_away(name: str) -> None:
    hidden = unreadable_batches()[name]
    sections = [single(("a", b"1")), hidden, batch([("b", b"1"), ("c", b"2")], pb.LZ4), single(("b", b"2"))]
    plan = CompactionPlan(NO_DELETIONS)
    for index, section in enumerate(sections):
        plan.observe(index, section)
    assert plan.retained(0, sections[0]) == sections[0]
    assert plan.retained(1, hidden) == hidden
    assert live_bits(hidden) is None
    rest = plan.retained(2, sections[2])
    assert rest is not None
    assert shown(rest) == [("c", b"2")]


async def test_a_compacted_topic_holds_the_entries_that_cannot_be_read() -> None:
    run = await Run.open()
    await run.publish(("a", b"1"), ("a", b"2"))
    hidden = list(unreadable_batches().values())
    outcomes = Outcomes()
    for section in hidden:
        outcomes.publish_bytes(run.ledger, section)
    await turns(lambda: len(outcomes.confirmed) == len(hidden))
    for _ in range(2):  # the second run reads what the first one kept
        await run.publish(("b", b"3"))
        run.compaction.start()
        assert (await run.finish()).status == "SUCCESS"
        chain, reader = await run.compaction.view()
        kept = [(await reader.entry(index)).client_bytes() for index in range(chain.first, chain.end)]
        assert kept == [single(("a", b"2")), *hidden, single(("b", b"3"))]
    await run.compaction.stop()


def test_an_empty_message_deletes_its_key_compressed_or_not() -> None:
    for codec in CODECS:
        empty = encode_entry(metadata(partition_key="a", compression=codec, uncompressed_size=0), compress(codec, b""))
        assert compacted([single(("a", b"1")), empty]) == []


def test_a_chunked_message_is_kept_or_dropped_as_a_whole() -> None:
    def chunks(uuid: str, count: int, of: int) -> list[bytes]:
        return [
            encode_single(
                metadata(uuid=uuid, num_chunks_from_msg=of, chunk_id=n), full_head(1, "a", None, None), b"%d" % n
            )
            for n in range(count)
        ]

    old, new, torn = chunks("one", 2, 2), chunks("two", 3, 3), chunks("three", 1, 2)
    assert compacted([*old, *new, *torn]) == [("a", b"0"), ("a", b"1"), ("a", b"2")]


def test_too_many_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.actors.broker.compaction.plan.KEYS_MAX", 2)
    plan = CompactionPlan(NO_DELETIONS)
    plan.observe(0, batch([("a", b"1"), ("b", b"1"), ("a", b"2")]))
    with pytest.raises(QuotaExceededError):
        plan.observe(1, single(("c", b"1")))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.data())
def test_the_compacted_chain_answers_as_a_list_of_positions_would(sizes: list[int], data: st.DataObject) -> None:
    base = LedgerChain()
    for number, size in enumerate(sizes):
        base.append(10 + number * 3, size)
    everything = [base.position_at(index) for index in range(base.end)]
    cut = data.draw(st.integers(0, len(everything)))
    horizon = base.position_before(cut)
    kept = [position for position in everything[:cut] if data.draw(st.booleans())]
    chain = CompactedChain(base, Positions(kept), horizon)
    seen = kept + everything[cut:]
    assert chain.end - chain.first == len(seen)
    assert [chain.position_at(index) for index in range(chain.first, chain.end)] == seen
    for index, position in enumerate(seen, chain.first):
        assert chain.find(position) == index
        assert chain.at_or_after(position) == index
        assert chain.after(position) == index + 1
        assert chain.position_before(index + 1) == position
    for number, position in enumerate(everything):
        expected = next((i for i, one in enumerate(seen, chain.first) if one >= position), chain.end)
        assert chain.at_or_after(position) == expected
        assert chain.from_base(number) == expected
        assert (chain.find(position) is None) == (position not in seen)
        assert chain.to_base(chain.from_base(number)) == max(number, cut) or expected == chain.end
    spans = [
        (span.ledger_id, span.entry_id + n, span.first + n)
        for span in chain.spans(chain.first, len(seen) + 5)
        for n in range(span.length)
    ]
    assert spans == [(*position, index) for index, position in enumerate(seen, chain.first)]


def test_the_record_of_a_compacted_ledger_is_checked() -> None:
    positions = Positions([(1, n) for n in range(INDEX_POSITIONS_MAX + 3)])
    blocks = encode_index(positions)
    assert len(blocks) == index_blocks(len(positions)) == 2
    found = Positions()
    for block in blocks:
        decode_index(block, found)
    assert [found[at] for at in range(len(found))] == [positions[at] for at in range(len(positions))]
    position, section = decode_kept(encode_kept(Position(3, 4), b"xyz"))
    assert (position, bytes(section)) == (Position(3, 4), b"xyz")
    for damaged in (b"", blocks[0][:20] + b"x", encode_kept(Position(3, 4), b"")):
        with pytest.raises(EntryDamagedError):
            decode_index(damaged, Positions())
    for damaged in (b"", blocks[0]):
        with pytest.raises(EntryDamagedError):
            decode_kept(damaged)


class Marked:
    """The subscription that keeps the topic's ledgers, as far as compaction knows it."""

    def __init__(self) -> None:
        self.positions: list[Position] = []

    def acknowledge_cumulative(self, position: Position) -> None:
        self.positions.append(position)


class Run:
    """A topic on ledgers in memory, with its compaction."""

    def __init__(self, world: World, ledger: ManagedLedger) -> None:
        self.world = world
        self.ledger = ledger
        self.mark = Marked()
        self.switches = 0
        self.setting = ConsumerSetting(deletions_kept_seconds=0)
        reader = TopicReader(ledger.chain, TailCache(1 << 20), world.ledgers)
        self.compaction = Compaction(ledger, reader, world.ledgers, self._mark, self._switched, self.setting)

    @classmethod
    async def open(cls) -> Run:
        world = World()
        return cls(world, await world.open(await world.session()))

    async def _mark(self) -> Any:
        return self.mark

    async def _switched(self) -> None:
        self.switches += 1

    async def publish(self, *messages: Message) -> None:
        outcomes = Outcomes()
        for message in messages:
            outcomes.publish_bytes(self.ledger, single(message))
        await turns(lambda: len(outcomes.confirmed) == len(messages))

    async def finish(self) -> CompactionStatus:
        if self.compaction._task is not None:
            await self.compaction._task
        return self.compaction.status

    async def contents(self) -> list[tuple[str, bytes]]:
        chain, reader = await self.compaction.view()
        found = [await reader.entry(index) for index in range(chain.first, chain.end)]
        return [message for entry in found for message in shown(entry.payload)]


async def test_a_run_makes_a_ledger_and_the_next_one_replaces_it() -> None:
    run = await Run.open()
    await run.publish(*((f"k{n % 3}", b"%d" % n) for n in range(9)))
    run.compaction.start()
    with pytest.raises(ConflictError):
        run.compaction.start()
    assert (await run.finish()).status == "SUCCESS"
    assert await run.contents() == [("k0", b"6"), ("k1", b"7"), ("k2", b"8")]
    assert run.mark.positions == [run.ledger.chain.position_before(run.ledger.chain.end)]
    first = run.compaction.compacted
    assert first is not None
    assert run.compaction.bytes_since == 0
    await run.publish(("k1", b"9"))
    assert run.compaction.bytes_since > 0
    run.compaction.start_if_due(1)
    assert (await run.finish()).status == "SUCCESS"
    assert await run.contents() == [("k0", b"6"), ("k2", b"8"), ("k1", b"9")]
    assert run.switches == 2
    assert deletable_ledgers(run.ledger.record) == [first.ledger_id]
    await run.ledger.trim(lambda: 0, 0)
    assert first.ledger_id not in run.world.ledgers.ledgers
    await run.compaction.stop()


async def test_a_run_that_fails_leaves_everything_as_it_was() -> None:
    run = await Run.open()
    await run.publish(("k", b"1"))
    ledgers = set(run.world.ledgers.ledgers)
    run.world.ledgers.fail_adds = PersistenceError("no bookie answers")
    run.compaction.start()
    status = await run.finish()
    assert (status.status, status.last_error) == ("ERROR", "no bookie answers")
    assert set(run.world.ledgers.ledgers) == ledgers
    assert (run.compaction.compacted, run.switches, run.mark.positions) == (None, 0, [])
    run.world.ledgers.fail_adds = None
    run.compaction.start()
    assert (await run.finish()).status == "SUCCESS"
    assert await run.contents() == [("k", b"1")]
    await run.compaction.stop()

"""Planning: asks brokers for acknowledged entries, their bookies, and grants to read them. Runs inside Ray.

A plan needs neither the metadata store nor the cluster's secret, and the tasks that carry it out need no Ray.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from heliograph.base.errors import BadRequestError, DataLostError, NotFoundError, TopicNotFoundError, UnsupportedError
from heliograph.client.admin.admin import Admin
from heliograph.metadata.model import LedgerMetadata, Segment
from heliograph.operations.table import READ_LEDGERS_MAX
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import Where
from heliograph.pipelines.planning.ledger_pages import last_row, rows_between
from heliograph.pipelines.planning.loss import Holdings, OnDataLoss, check_losses, check_on_data_loss
from heliograph.pipelines.planning.plan_answer import PlanAnswer
from heliograph.pipelines.planning.ranges import LedgerRange, Position, cut, narrow, range_of
from heliograph.protocol.topic_name import TopicName

log = logging.getLogger(__name__)

R = TypeVar("R")

Asked = Admin | PlanAnswer  # who is asked what brokers know

PLAN_ATTEMPTS_MAX = 5  # a ledger that is trimmed during an attempt makes it fail


class _Span(NamedTuple):
    """The acknowledged entries of a ledger."""

    topic: str
    partition: int
    ledger_id: int
    first: int
    last: int
    size: int = 0  # bytes; 0: not known
    opened_ms: int = 0  # by the clock of its broker, not later than that; 0: not known
    closed_ms: int = 0  # 0: it is not closed, or not known


def plan_topic(
    topic: str,
    *,
    start: Mapping[int, Position] | None = None,
    end: Mapping[int, Position] | None = None,
    on_data_loss: OnDataLoss = "fail",
    compacted: bool = False,
    latest: bool = False,
    where: Where | None = None,
    access: ClusterAccess | None = None,
) -> list[LedgerRange]:
    """Return all entries of a topic that are acknowledged now, from ``start`` (included) to ``end`` (excluded).

    Args:
        topic: a topic or partitioned topic.
        start, end: positions (ledger id, entry id) per partition, -1 for a topic without partitions.
        on_data_loss: ``fail`` when entries at or after ``start`` were deleted; ``skip`` logs how many, and goes on.
        compacted: plan what compaction kept, and then the entries that it has not seen yet. It goes without bounds.
        latest: plan the same, and leave of its rows the latest one of each key.
        where: conditions on rows. Entries that cannot have such rows may be left out: those that named messages are not
            in, and ledgers that were written more than an hour before or after the times of publication that are asked
            for. It does not go for what compaction kept.
        access: the cluster, who reads, and the way; None: the one that ``heliograph.connect`` uses.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        BadRequestError: bounds are given for a compacted topic, or its latest rows.
        DataLostError: entries at or after ``start`` were deleted.
        UnsupportedError: the topic is not persistent, so it stores nothing.
        NotFoundError: the topic names a ledger that has no record.
    """
    check_on_data_loss(on_data_loss)
    if (compacted or latest) and (start or end):
        name = "latest" if latest else "compacted"
        raise BadRequestError(f"start and end do not go with {name}", field=name)
    asked = _persistent(topic)
    admin = (access or ClusterAccess()).admin()
    if latest:
        return [replace(piece, latest=True) for piece in _run(_plan_compacted(asked, admin))]
    return _run(_plan_compacted(asked, admin) if compacted else _plan(asked, start, end, admin, on_data_loss, where))


async def plan_once(name: TopicName, admin: Admin, start: Mapping[int, Position] | None = None) -> list[LedgerRange]:
    """Return the acknowledged entries of a topic, for callers with an event loop and an administration of their own.

    Raises:
        TopicNotFoundError: there is no such topic.
        DataLostError: entries at or after ``start`` were deleted.
    """
    return await _plan(name, start, None, admin)


def ends_of(topic: str, access: ClusterAccess) -> dict[str, Position]:
    """Return the position behind the last acknowledged entry, by full name of each partition that has entries.

    It costs less than a plan: brokers are asked for ledgers alone, not for what is needed to read them.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        UnsupportedError: the topic is not persistent, so it stores nothing.
    """
    return _run(_ends(_persistent(topic), access.admin()))


def starts_at(topic: str, time_ms: int, access: ClusterAccess) -> dict[str, Position]:
    """Return the position of the first entry that was published at a time or later, or of the last one, by full name
    of each partition that has entries. An entry may hold earlier messages, too.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        UnsupportedError: the topic is not persistent, so it stores nothing.
    """
    return _run(_starts_at(_persistent(topic), time_ms, access.admin()))


def _persistent(topic: str) -> TopicName:
    name = TopicName.parse(topic)
    if not name.is_persistent:
        raise UnsupportedError(f"{topic} is not persistent: it stores no messages to read as a table", field="topic")
    return name


def refresh_addresses(
    ranges: Sequence[LedgerRange],
    *,
    on_data_loss: OnDataLoss = "fail",
    access: ClusterAccess | None = None,
) -> list[LedgerRange]:
    """Return the same ranges with the present bookies and addresses of their ledgers, for plans that were stored.

    Args:
        on_data_loss: ``skip`` leaves out the ranges of ledgers that were deleted, and logs how many entries they had.

    Raises:
        ClusterNotFoundError: there is no such cluster.
        NotFoundError: a ledger was deleted since the plan was made.
    """
    if not ranges:
        return []
    admin = (access or ClusterAccess()).admin()
    return _run(_refresh(admin, ranges) if on_data_loss == "fail" else _refresh_what_is_left(admin, ranges))


def schema_versions(topic: str, access: ClusterAccess) -> list[dict[str, Any]]:
    """Return all versions of a topic's schema, as ``admin.schemas.versions`` does.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
    """
    return _run(access.admin().schemas.versions(topic))


async def _plan(
    name: TopicName,
    start: Mapping[int, Position] | None,
    end: Mapping[int, Position] | None,
    admin: Admin,
    on_data_loss: OnDataLoss = "fail",
    where: Where | None = None,
) -> list[LedgerRange]:
    attempts = PLAN_ATTEMPTS_MAX
    while True:
        try:
            told = await PlanAnswer.of(admin, name, start, end, where)
            names = name.partitions(await told.partitions(str(name)))
            acknowledged = await _acknowledged(told, names, start, end)
            check_losses(await _holdings(told, names, acknowledged, start), start, on_data_loss)
            spans = [span for span in acknowledged if _is_wanted(span, start, end) and _may_match(span, where)]
            return _of_messages(cut(await _with_those_before(told, acknowledged, spans), start, end), where)
        except (TopicNotFoundError, DataLostError):
            raise
        except NotFoundError:  # a ledger was trimmed since its broker answered; the next answer does not name it
            attempts -= 1
            if not attempts:
                raise


async def _plan_compacted(name: TopicName, admin: Admin) -> list[LedgerRange]:
    ranges: list[LedgerRange] = []
    for one in name.partitions(await admin.partitions(str(name))):
        attempts = PLAN_ATTEMPTS_MAX
        while True:
            try:
                ranges += await _plan_one_compacted(one, admin)
                break
            except TopicNotFoundError:
                raise
            except NotFoundError:  # a compaction ended, or a ledger was trimmed, between two answers
                attempts -= 1
                if not attempts:
                    raise
    return ranges


async def _plan_one_compacted(name: TopicName, admin: Admin) -> list[LedgerRange]:
    compacted = (await admin.read_access(str(name), []))["compacted"]
    # Asked after that: an entry behind the horizon is trimmed only once a later compaction has kept what matters of it.
    if compacted is None:
        return await _ranges(admin, await _acknowledged(admin, [name]))
    ledger_id, entry_id = compacted["horizon"]
    start = {name.partition: (ledger_id, entry_id + 1)}
    rest = await _acknowledged(admin, [name], start)
    fresh = [span for span in rest if _is_wanted(span, start, None)]
    if not compacted["entries"]:  # no message had a key, or the last one of each was a tombstone
        return cut(await _ranges(admin, fresh), start)
    kept = _Span(str(name), name.partition, compacted["ledger_id"], 0, compacted["entries"] - 1)
    first, *others = await _ranges(admin, [kept, *fresh])
    return [replace(first, compacted=True), *cut(others, start)]


async def _acknowledged(
    admin: Asked,
    names: Sequence[TopicName],
    start: Mapping[int, Position] | None = None,
    end: Mapping[int, Position] | None = None,
) -> list[_Span]:
    """Return the ledgers with entries, from the one before ``start`` on. Some after ``end`` may be among them."""
    bounds = [[(one or {}).get(name.partition, (None,))[0] for one in (start, end)] for name in names]
    asked = (rows_between(admin, str(name), *ids) for name, ids in zip(names, bounds, strict=True))
    return [
        _Span(
            str(name),
            name.partition,
            row.ledger_id,
            0,
            row.entries - 1,
            row.size,
            before.closed_ms if before is not None else 0,
            row.closed_ms,
        )
        for name, rows in zip(names, await asyncio.gather(*asked), strict=True)
        for before, row in zip([None, *rows], rows, strict=False)
        if row.entries
    ]


async def _ends(name: TopicName, admin: Admin) -> dict[str, Position]:
    names = [str(one) for one in name.partitions(await admin.partitions(str(name)))]
    rows = await asyncio.gather(*(last_row(admin, one) for one in names))
    return {one: (row.ledger_id, row.entries) for one, row in zip(names, rows, strict=True) if row is not None}


async def _starts_at(name: TopicName, time_ms: int, admin: Admin) -> dict[str, Position]:
    names = [str(one) for one in name.partitions(await admin.partitions(str(name)))]
    ids = await asyncio.gather(*(admin.cursors.message_id_at(one, time_ms) for one in names))
    found = {one: [int(number) for number in text.split(":")[:2]] for one, text in zip(names, ids, strict=True)}
    return {one: (ledger_id, max(0, entry_id)) for one, (ledger_id, entry_id) in found.items() if ledger_id >= 0}


async def _holdings(
    admin: Asked, names: Sequence[TopicName], spans: Sequence[_Span], start: Mapping[int, Position] | None
) -> list[Holdings]:
    """Return what the partitions hold whose start is in none of the ledgers that have entries."""
    if not start:
        return []
    doubtful = []
    for name in names:
        ledgers = [span.ledger_id for span in spans if span.topic == str(name)]
        wanted = start.get(name.partition)
        if wanted is not None and wanted[0] not in ledgers:
            doubtful.append((name, ledgers))
    known = {name.partition for name in names}
    gone = [Holdings(names[0].partitioned_name, partition, []) for partition in sorted(set(start) - known)]
    # Asked after the brokers told the ledgers: one that is not among them, and was trimmed, is told of as trimmed.
    answers = await asyncio.gather(*(admin.read_access(str(name), []) for name, _ in doubtful))
    return gone + [
        Holdings(str(name), name.partition, ledgers, [(pair[0], pair[1]) for pair in answer["trimmed"]])
        for (name, ledgers), answer in zip(doubtful, answers, strict=True)
    ]


def _is_wanted(span: _Span, start: Mapping[int, Position] | None, end: Mapping[int, Position] | None) -> bool:
    """Return whether a ledger may hold entries between the bounds; the records of others are not read."""
    partition, ledger_id = span.partition, span.ledger_id
    is_before = partition in (start or {}) and ledger_id < (start or {})[partition][0]
    is_behind = partition in (end or {}) and ledger_id > (end or {})[partition][0]
    return not is_before and not is_behind


async def _with_those_before(admin: Asked, acknowledged: Sequence[_Span], spans: Sequence[_Span]) -> list[LedgerRange]:
    """Return the ranges of ``spans``, each with the end of the ledger before it: messages in chunks may begin there."""
    pairs = zip([None, *acknowledged], acknowledged, strict=False)
    previous = {span: one for one, span in pairs if one is not None and one.topic == span.topic}
    beside = [previous[span] for span in spans if span in previous and previous[span] not in spans]
    ranges = await _ranges(admin, spans)
    by_span = dict(zip(spans, ranges, strict=True))
    try:
        by_span |= zip(beside, await _ranges(admin, beside) if beside else [], strict=True)
    except TopicNotFoundError:
        raise
    except NotFoundError:
        log.info("a ledger of %s, before the first one that is read, is gone", spans[0].topic)
    tails = {span: by_span[one].tail() for span, one in previous.items() if span in by_span and one in by_span}
    return [replace(piece, before=tails.get(span)) for span, piece in zip(spans, ranges, strict=True)]


def _may_match(span: _Span, where: Where | None) -> bool:
    """Return whether a ledger may hold rows that are wanted."""
    if where is None:
        return True
    ids = where.message_ids()
    if ids is not None and (span.partition, span.ledger_id) not in {(one.partition, one.ledger_id) for one in ids}:
        return False
    return where.may_be_in(span.opened_ms, span.closed_ms)


def _of_messages(ranges: Sequence[LedgerRange], where: Where | None) -> list[LedgerRange]:
    """Return the parts of ranges with the entries of the messages that are named, if any are."""
    ids = where.message_ids() if where is not None else None
    if ids is None:
        return list(ranges)
    wanted = sorted({(one.partition, one.ledger_id, one.entry_id) for one in ids})
    return [
        narrow(piece, entry_id, entry_id)
        for piece in ranges
        for partition, ledger_id, entry_id in wanted
        if (partition, ledger_id) == (piece.partition, piece.ledger_id)
        and piece.first_entry_id <= entry_id <= piece.last_entry_id
    ]


async def _ranges(admin: Asked, spans: Sequence[_Span]) -> list[LedgerRange]:
    wanted: dict[str, list[int]] = {}
    for span in spans:
        wanted.setdefault(span.topic, []).append(span.ledger_id)
    # Asked after the brokers told what is acknowledged: the records name the segments that hold it. # I8
    found = dict(zip(wanted, await asyncio.gather(*(_access(admin, *one) for one in wanted.items())), strict=True))
    return [
        range_of(
            span.topic,
            span.partition,
            found[span.topic].records[span.ledger_id],
            span.first,
            span.last,
            found[span.topic].addresses,
            found[span.topic].grants.get(span.ledger_id, ""),
            found[span.topic].authority,
            span.size,
            found[span.topic].racks,
        )
        for span in spans
    ]


async def _refresh(admin: Admin, ranges: Sequence[LedgerRange]) -> list[LedgerRange]:
    spans = [
        _Span(piece.topic, piece.partition, piece.ledger_id, piece.first_entry_id, piece.last_entry_id, piece.size)
        for piece in ranges
    ]
    fresh = await _ranges(admin, spans)
    fresh = [replace(new, compacted=old.compacted, latest=old.latest) for old, new in zip(ranges, fresh, strict=True)]
    befores = await _refreshed_befores(admin, ranges)
    fresh = [replace(new, before=befores.get(old.ledger_id)) for old, new in zip(ranges, fresh, strict=True)]
    for old, new in zip(ranges, fresh, strict=True):
        told = replace(new, segments=old.segments, addresses=old.addresses, racks=old.racks)
        told = replace(told, grant=old.grant, authority=old.authority)
        assert told == old, "only bookies, addresses, racks, grants and the authority may differ"
    return fresh


async def _refreshed_befores(admin: Admin, ranges: Sequence[LedgerRange]) -> dict[int, LedgerRange]:
    """Return the ledgers before those of ranges, by the ids of those; nothing of a ledger that is gone."""
    known = {piece.ledger_id: piece.before for piece in ranges if piece.before is not None}
    found: dict[int, LedgerRange] = {}
    for ledger_id, before in known.items():
        try:
            (found[ledger_id],) = await _refresh(admin, [before])
        except TopicNotFoundError:
            raise
        except NotFoundError:
            log.info("ledger %d of %s, before a planned range, is gone", before.ledger_id, before.topic)
    return found


async def _refresh_what_is_left(admin: Admin, ranges: Sequence[LedgerRange]) -> list[LedgerRange]:
    left: list[LedgerRange] = []
    for piece in ranges:
        try:
            left += await _refresh(admin, [piece])
        except TopicNotFoundError:
            raise
        except NotFoundError as error:
            log.warning("skipping %d lost entries of %s: %s", piece.entries, piece.topic, error)
    return left


@dataclass(slots=True)
class _Access:
    """A broker's answer about some ledgers of one topic."""

    records: dict[int, LedgerMetadata] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    racks: dict[str, str] = field(default_factory=dict)
    grants: dict[int, str] = field(default_factory=dict)
    authority: str = ""


async def _access(admin: Asked, name: str, ledger_ids: Iterable[int]) -> _Access:
    access, wanted = _Access(), sorted(set(ledger_ids))
    for start in range(0, len(wanted), READ_LEDGERS_MAX):
        answer = await admin.read_access(name, wanted[start : start + READ_LEDGERS_MAX])
        for told in answer["ledgers"]:
            segments = tuple(Segment(first, tuple(bookies)) for first, bookies in told["segments"])
            access.records[told["ledger_id"]] = LedgerMetadata(
                ledger_id=told["ledger_id"],
                ensemble_size=len(segments[0].bookies),
                write_quorum=told["write_quorum"],
                ack_quorum=told["ack_quorum"],
                segments=segments,
            )
        access.addresses |= answer["addresses"]
        access.racks |= answer.get("racks", {})  # brokers before it did not tell them
        access.authority = answer["authority"]
        access.grants |= {one: grant["grant"] for grant in answer["grants"] for one in grant["ledger_ids"]}
    return access


def _run(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, also where an event loop already runs, as in a notebook."""
    with ThreadPoolExecutor(1, thread_name_prefix="planning") as thread:
        return thread.submit(asyncio.run, coroutine).result()

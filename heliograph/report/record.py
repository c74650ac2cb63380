"""The record of the report in the metadata store: its writer, and the reading of a silent writer's record."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from heliograph.base.clock import wall_ms
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError, RecordTooLargeError
from heliograph.metadata.operator_records import ClusterReport, PartReport, Roster
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore
from heliograph.report.gathering import gather

REPORT_SECONDS = 10.0  # a report is written at least so often
REPORT_SECONDS_MAX = 20.0  # pause of a writer that needs long for one; below SILENT_SECONDS
SILENT_SECONDS = 30.0  # an older report is not relied on: its writer is away, or clocks differ
PARTS_MAX, NOTES_MAX, NOTE_LENGTH_MAX = 1_000, 100, 600  # I15
SEEN = ("seen_ms", "free_bytes", "total_bytes", "used_share")  # of a part, which a dead one keeps
NOTE_LENGTH_MIN = 30  # of notes that are cut because the record would be too large


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """The report of an operator of release 0.1.0 instead of a ``ClusterReport``; the record ends with its session.

    ``parts`` has what is wrong with a part, and ``versions`` the one of its program, by the part's name.
    """

    identity: str
    notes: tuple[str, ...] = ()
    parts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


async def save_report(store: MetadataStore, report: ClusterReport) -> None:
    """Replace the record. Only the operator that leads calls this, or the process of a cluster without Ray.

    Raises:
        MetadataError: the outcome is unknown; storing it again is safe.
    """
    value = _fitting(report)
    try:
        await store.set(paths.CLUSTER_REPORT, value)
    except NoNodeError:
        with contextlib.suppress(NodeExistsError):
            await store.create(paths.CLUSTER_REPORT, value, parents=True)


async def load_report(store: MetadataStore) -> ClusterReport | None:
    """Return the record; None if there is none.

    Raises:
        RecordError: it is damaged, or of a newer version.
        MetadataError: the store failed.
    """
    with contextlib.suppress(NoNodeError):
        return (await read(store, paths.CLUSTER_REPORT, ClusterReport)).record
    return None


async def current_report(store: MetadataStore) -> ClusterReport:
    """Return the record, as any reader is to see it.

    Where its writer is silent, or there is none, the report is of what is registered, and says so. An operator of
    release 0.1.0 writes another record, which is added to what is registered.

    Raises:
        MetadataError: the store failed.
    """
    report = await load_report(store)
    if report is not None and wall_ms() - report.as_of_ms < SILENT_SECONDS * 1_000:
        return report
    wanted: tuple[str, ...] = ()
    has_operator = False
    with contextlib.suppress(NoNodeError):
        roster = (await read(store, paths.ROSTER, Roster)).record
        wanted, has_operator = tuple(part.name for part in roster.parts if not part.is_leaving), True
    last = report or ClusterReport()
    older: OperatorReport | None = None
    with contextlib.suppress(NoNodeError):
        older = (await read(store, paths.OPERATOR_REPORT, OperatorReport)).record
    if older is not None:
        return await _of_older(store, older, wanted)
    parts = [_unseen(part) for part in last.parts if part.kind not in ("bookie", "broker") or part.name in wanted]
    known = {part.name for part in parts}
    parts += [PartReport(name, _kind_of(name)) for name in wanted if name not in known]
    is_silent = has_operator or report is not None
    found = await gather(store, parts, [_silence(last)] if is_silent else [])
    return replace(found, identity=last.identity, as_of_ms=last.as_of_ms, is_silent=is_silent, nodes=last.nodes)


def with_since(report: ClusterReport, before: ClusterReport | None) -> ClusterReport:
    """Return a report with the times since when each part and node is as it is, and what dead parts had when they were
    seen last, by the report before it. Pure."""
    known = {part.name: part for part in before.parts} if before is not None else {}

    def dated(part: PartReport) -> PartReport:
        old = known.get(part.name)
        is_same = old is not None and (old.state, old.is_well, old.pid) == (part.state, part.is_well, part.pid)
        part = replace(part, since_ms=old.since_ms if old is not None and is_same else report.as_of_ms)
        if part.address:
            return replace(part, seen_ms=report.as_of_ms)
        return part if old is None else replace(part, **{name: getattr(old, name) for name in SEEN})

    nodes = {(node.address, node.state): node for node in before.nodes} if before is not None else {}
    now = [replace(node, since_ms=report.as_of_ms) for node in report.nodes]
    found = tuple(nodes.get((node.address, node.state), node) for node in now)
    return replace(report, parts=tuple(map(dated, report.parts)), nodes=found)


async def _of_older(store: MetadataStore, told: OperatorReport, wanted: Collection[str]) -> ClusterReport:
    names = dict.fromkeys((*told.versions, *told.parts, *wanted))  # each once, in order
    parts = [
        PartReport(name, _kind_of(name), note=told.parts.get(name, ""), version=told.versions.get(name, ""))
        for name in names
    ]
    note = (
        f"{told.identity} is of an earlier release, which reports neither processes nor machines: "
        "`helio restart --rolling` gives the cluster a new one"
    )
    found = await gather(store, parts, (note, *told.notes))
    return replace(found, identity=told.identity, as_of_ms=wall_ms())


def _kind_of(name: str) -> str:
    return name.partition("-")[0]


def _silence(last: ClusterReport) -> str:
    if not last.as_of_ms:
        return "no operator has reported yet: parts that do not register are not seen; `helio up` starts an operator"
    when = datetime.fromtimestamp(last.as_of_ms / 1_000).isoformat(" ", "seconds")
    return (
        f"{last.identity} is silent since {when}: parts that do not register are not seen or started again; "
        "`helio up` starts an operator, `helio logs operator` has its last words"
    )


def _unseen(part: PartReport) -> PartReport:
    """Return the remaining facts of a part whose reporter is silent."""
    seen = {name: getattr(part, name) for name in SEEN}
    return PartReport(part.name, part.kind, since_ms=part.since_ms, version=part.version, home=part.home, **seen)


def _fitting(report: ClusterReport) -> bytes:
    """Return the record of a report, with notes that are as long as it has room for."""
    length = NOTE_LENGTH_MAX
    while True:
        try:
            return codec.encode(_bounded(report, length), paths.CLUSTER_REPORT)
        except RecordTooLargeError:
            length //= 2
            if length < NOTE_LENGTH_MIN:
                raise


def _bounded(report: ClusterReport, length: int) -> ClusterReport:
    """Return the report with as much as its record may hold: parts that are well are left out first."""
    parts = tuple(replace(part, note=part.note[:length]) for part in report.parts)
    notes = _some(report.notes, length)
    if len(parts) > PARTS_MAX:
        kept = {part.name for part in sorted(parts, key=lambda part: part.is_well)[:PARTS_MAX]}
        notes = (*notes, f"{len(parts) - PARTS_MAX} more parts are not shown")
        parts = tuple(part for part in parts if part.name in kept)
    report = replace(report, nodes=report.nodes[:PARTS_MAX])
    return replace(report, parts=parts, notes=notes, publishing_notes=_some(report.publishing_notes, length))


def _some(notes: Collection[str], length: int) -> tuple[str, ...]:
    found = [note[:length] for note in notes]
    return tuple(found if len(found) <= NOTES_MAX else [*found[:NOTES_MAX], f"{len(found) - NOTES_MAX} more notes"])

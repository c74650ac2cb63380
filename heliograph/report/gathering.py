"""Facts of the metadata store, added to the facts of the parts' processes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TypeVar
from urllib.parse import unquote

from heliograph.actors.auditor.ledger_scan import OnUnreadable, scan_records
from heliograph.base.errors import HeliographError
from heliograph.metadata import paths
from heliograph.metadata.bookie_records import BookieStartFailure, LedgerRisks, UnderReplicatedLedger
from heliograph.metadata.codec import decode
from heliograph.metadata.errors import NoNodeError, RecordError
from heliograph.metadata.model import BookieRegistration, BrokerLoad, BrokerRegistration, Persistence
from heliograph.metadata.operator_records import BookieRack, ClusterReport, PartReport, RestoredMark
from heliograph.metadata.parents import children_if_any
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore
from heliograph.report.findings import NOT_STARTING
from heliograph.report.publishing import publishing_notes

READS_AT_ONCE_MAX = 64
TASKS_READ_MAX = 20_000  # I15
TOPICS_READ_MAX = 1_000  # names  # I15, I24
TENANT, NAMESPACE = "public", "default"  # whose topics are counted
ALIVE, MISSING = "ALIVE", "MISSING"
_PARTITION = re.compile(r"(.+)-partition-\d+")
R = TypeVar("R")


async def gather(
    store: MetadataStore, parts: Sequence[PartReport], notes: Iterable[str] = (), copies: Persistence | None = None
) -> ClusterReport:
    """Return the report of a cluster, without the name and the time of a reporter.

    Args:
        parts: the facts of their processes; registered parts that are missing are added.
        notes: lines for people that the report begins with.
        copies: of namespaces that set none; None: not known.

    Raises:
        MetadataError: the store failed.
    """
    unreadable: list[str] = []

    def note_unreadable(path: str, why: HeliographError) -> None:
        unreadable.append(f"metadata: {path}: {why}")

    async def records(parent: str, kind: type[R]) -> dict[str, R]:
        return await scan_records(store, parent, 1, kind, READS_AT_ONCE_MAX, note_unreadable)

    writable = await records(paths.BOOKIES_AVAILABLE, BookieRegistration)
    readonly = await records(paths.BOOKIES_READONLY, BookieRegistration)
    registered = await records(paths.BROKERS_AVAILABLE, BrokerRegistration)
    brokers = {broker.actor_name: broker.service_url or broker.service_url_tls for broker in registered.values()}
    racks = await records(paths.BOOKIES_RACKS, BookieRack)
    failures = await records(paths.BOOKIES_FAILED, BookieStartFailure)
    loads = await records(paths.BROKER_LOADS, BrokerLoad)
    draining = sorted(await children_if_any(store, paths.BOOKIES_DRAINING))
    bookies = readonly | writable
    disks = {name: text for name, bookie in sorted(bookies.items()) if (text := _disk_note(bookie))}
    addresses = {name: bookie.address for name, bookie in bookies.items()} | brokers

    def explained(part: PartReport) -> PartReport:
        bookie = bookies.get(part.name)
        rack = "" if bookie is None else racks[part.name].rack if part.name in racks else bookie.rack
        found = _with_disks(replace(part, address=addresses.get(part.name, part.address), rack=rack), bookie)
        if found.kind in ("bookie", "broker") and not found.address:
            return replace(found, note=_why_not_registered(found, failures), is_warning=False)
        if found.note:
            return found
        if part.name in draining:
            return replace(found, note="being decommissioned", is_leaving=True)
        if part.name in readonly:
            return replace(found, note=f"read-only: {disks.get(part.name, 'for a reason that its log has')}")
        return replace(found, note=disks.get(part.name, ""), is_warning=part.name in disks)

    names = {part.name for part in parts}
    others = [PartReport(name, name.partition("-")[0]) for name in sorted({*addresses, *failures}) if name not in names]
    missing, moving, damaged = await _count_tasks(store, bookies.keys() & {*draining}, note_unreadable)
    large = [f"metadata: {text}" for load in loads.values() for text in load.large_records]
    return ClusterReport(
        parts=tuple(explained(part) for part in (*parts, *others)),
        notes=(*notes, *large, *unreadable),
        bookies_available=tuple(sorted(writable)),
        bookies_readonly=tuple(sorted(readonly)),
        bookies_draining=tuple(draining),
        full_disks=disks,
        service_urls=tuple(brokers[name] for name in sorted(brokers)),
        underreplicated_ledgers=missing,
        ledgers_in_repair=len(await children_if_any(store, paths.UNDERREPLICATION_LOCKS)),
        ledgers_moving=moving,
        ledgers_damaged=damaged,
        is_repair_paused=await store.exists(paths.UNDERREPLICATION_DISABLED) is not None,
        publishing_notes=tuple(await publishing_notes(store, sorted(writable), readonly, note_unreadable, copies)),
        restored_backup_ms=await restored_backup_ms(store),
        topics=await count_topics(store),
        ledger_risks=await _ledger_risks(store),
    )


async def _ledger_risks(store: MetadataStore) -> dict[str, int]:
    try:
        return (await read(store, paths.LEDGER_RISKS, LedgerRisks)).record.machines
    except NoNodeError:
        return {}


async def restored_backup_ms(store: MetadataStore) -> int:
    """Return when the backup was made that the metadata came out of, while nobody accepted it; 0: there is none."""
    try:
        return decode(RestoredMark, (await store.get(paths.RESTORED))[0]).backup_ms
    except NoNodeError:
        return 0


async def count_topics(store: MetadataStore) -> int:
    """Return the number of topics of public/default.

    A partitioned topic counts once; where there are more than TOPICS_READ_MAX names, each of its partitions does,
    because a report is made too often to read all names.
    """
    families = (
        (paths.topic, paths.partitioned_topic),
        (paths.non_persistent_topic, paths.non_persistent_partitioned),
    )
    stats = [await store.exists(_folder(single)) for single, _ in families]
    count = sum(stat.num_children for stat in stats if stat is not None)
    if count > TOPICS_READ_MAX:
        return count
    count = 0
    for single, partitioned in families:
        parents = await _topics(store, partitioned)
        for name in await _topics(store, single):
            match = _PARTITION.fullmatch(name)
            count += match is None or match[1] not in parents
        count += len(parents)
    return count


def _with_disks(part: PartReport, bookie: BookieRegistration | None) -> PartReport:
    if bookie is None:
        return part
    free, total, used = bookie.free_bytes, bookie.total_bytes, bookie.used_share
    return replace(part, free_bytes=free, total_bytes=total, used_share=used)


def _disk_note(bookie: BookieRegistration) -> str:
    if not (bookie.is_full or bookie.is_nearly_full):
        return ""
    return f"its disk is {'full' if bookie.is_full else 'nearly full'} ({bookie.used_share:.0%} used)"


def _why_not_registered(part: PartReport, failures: Mapping[str, BookieStartFailure]) -> str:
    """Return why a bookie or broker is not registered. A bookie that does not start has written down why."""
    if (failure := failures.get(part.name)) is not None:
        others = [each for name, each in failures.items() if name != part.name]
        times = "" if failure.failures == 1 else f" ({failure.failures} starts in a row)"
        return f"{NOT_STARTING}: {failure.error}: {failure.explain([*others, failure])}{times}"
    if part.note and not part.is_warning:
        return part.note
    return "runs, but is not registered in metadata yet" if part.state == ALIVE else "is not registered in metadata"


async def _count_tasks(store: MetadataStore, leaving: Set[str], on_unreadable: OnUnreadable) -> tuple[int, int, int]:
    """Return how many ledgers miss copies, apart from them those whose copies only move, and those with damage."""
    names = await children_if_any(store, paths.UNDERREPLICATED)
    gate = asyncio.Semaphore(READS_AT_ONCE_MAX)  # I15

    async def task_of(name: str) -> UnderReplicatedLedger | None:
        async with gate:
            try:
                return (await read(store, f"{paths.UNDERREPLICATED}/{name}", UnderReplicatedLedger)).record
            except NoNodeError:  # done since the list was read
                return None
            except RecordError as error:
                on_unreadable(f"{paths.UNDERREPLICATED}/{name}", error)
                return None

    found = await asyncio.gather(*map(task_of, names[:TASKS_READ_MAX]))
    tasks = [task for task in found if task is not None]
    moving = sum(not task.is_abandoned and leaving >= {*task.missing_bookies} for task in tasks)
    damaged = sum(task.lost_entries > 0 for task in tasks)
    unread = len(names) - len(found)
    is_all_moving = bool(unread) and moving == len(tasks)  # then so are those that were not read, as far as is known
    missing = len(tasks) - moving + (0 if is_all_moving else unread)
    return missing, len(tasks) - missing + unread, damaged


async def _topics(store: MetadataStore, path_of: Callable[[str, str, str], str]) -> set[str]:
    return {unquote(name) for name in await children_if_any(store, _folder(path_of))}


def _folder(path_of: Callable[[str, str, str], str]) -> str:
    return path_of(TENANT, NAMESPACE, "any").rpartition("/")[0]

"""What the metadata store knows of a cluster: registrations, tasks of repair and topics."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from urllib.parse import unquote

from heliograph.cluster.operator.storage import load_report
from heliograph.cluster.status.members import ask_members
from heliograph.cluster.status.model import ClusterStatus
from heliograph.cluster.status.publishing import publishing_notes
from heliograph.metadata import paths
from heliograph.metadata.bookie_records import BookieStartFailure, UnderReplicatedLedger
from heliograph.metadata.codec import decode
from heliograph.metadata.connect import connect_store
from heliograph.metadata.credentials import with_secrets
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import BookieRegistration, BrokerLoad, BrokerRegistration
from heliograph.metadata.operator_records import RestoredMark
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

TASKS_READ_AT_ONCE_MAX = 64
TASKS_READ_MAX = 2_000  # to count damaged ledgers; with more tasks, those beyond are not looked at
TENANT, NAMESPACE = "public", "default"  # whose topics are counted
_PARTITION = re.compile(r"(.+)-partition-\d+")


async def ask_metadata(status: ClusterStatus, secret: str | None, *, with_topics: bool = False) -> None:
    """Add what the store knows.

    Args:
        secret: the cluster's, which the embedded store asks for; None: that of the environment.
        with_topics: count the topics, too.

    Raises:
        HeliographError: the store cannot be reached, or failed.
    """
    if not status.metadata_url:
        return
    await ask_members(status)
    store = await connect_store(with_secrets(status.metadata_url, secret))
    try:
        status.bookies_available = await store.children(paths.BOOKIES_AVAILABLE)
        status.bookies_readonly = await store.children(paths.BOOKIES_READONLY)
        status.bookies_draining = await store.children(paths.BOOKIES_DRAINING)
        status.is_repair_paused = await store.exists(paths.UNDERREPLICATION_DISABLED) is not None
        status.ledgers_in_repair = len(await store.children(paths.UNDERREPLICATION_LOCKS))
        status.restored_backup_ms = await restored_backup_ms(store)
        readonly = await _take_addresses(status, store)
        status.publishing_notes = await publishing_notes(store, status.bookies_available, readonly)
        await _take_start_failures(status, store)
        await _take_report(status, store)
        await _take_large_records(status, store)
        await _count_tasks(status, store)
        if with_topics:
            status.topics = await count_topics(store)
    finally:
        await store.close()


async def restored_backup_ms(store: MetadataStore) -> int:
    """Return when the backup was made that the metadata came out of, while nobody accepted it; 0: there is none."""
    try:
        return decode(RestoredMark, (await store.get(paths.RESTORED))[0]).backup_ms
    except NoNodeError:
        return 0


async def _count_tasks(status: ClusterStatus, store: MetadataStore) -> None:
    """Count ledgers that miss copies, and apart from them those whose copies only move."""
    names = await store.children(paths.UNDERREPLICATED)
    leaving = {*status.bookies_draining} & {*status.bookies_available, *status.bookies_readonly}
    gate = asyncio.Semaphore(TASKS_READ_AT_ONCE_MAX)  # I15
    read_names = names if leaving else names[:TASKS_READ_MAX]
    tasks = await asyncio.gather(*(_task(store, name, gate) for name in read_names))
    moving = sum(task is None or _is_moving(task, leaving) for task in tasks)  # None: done since the list was read
    status.underreplicated_ledgers, status.ledgers_moving = len(names) - moving, moving
    status.ledgers_damaged = sum(task is not None and task.lost_entries > 0 for task in tasks)


async def _task(store: MetadataStore, name: str, gate: asyncio.Semaphore) -> UnderReplicatedLedger | None:
    async with gate:
        try:
            return (await read(store, f"{paths.UNDERREPLICATED}/{name}", UnderReplicatedLedger)).record
        except NoNodeError:
            return None


def _is_moving(task: UnderReplicatedLedger, leaving: set[str]) -> bool:
    return not task.is_abandoned and leaving.issuperset(task.missing_bookies)


async def _take_addresses(status: ClusterStatus, store: MetadataStore) -> dict[str, BookieRegistration]:
    """Add the addresses of parts, and what is said of disks. Return the registrations of read-only bookies."""
    addresses, readonly = {}, {}
    for parent in (paths.BOOKIES_AVAILABLE, paths.BOOKIES_READONLY):
        for name in await store.children(parent):
            with contextlib.suppress(NoNodeError):
                bookie = decode(BookieRegistration, (await store.get(f"{parent}/{name}"))[0])
                addresses[name] = bookie.address
                if parent == paths.BOOKIES_READONLY:
                    readonly[name] = bookie
                if bookie.is_full or bookie.is_nearly_full:
                    how = "full" if bookie.is_full else "nearly full"
                    status.full_disks[name] = f"its disk is {how} ({bookie.used_share:.0%} used)"
    for name in await store.children(paths.BROKERS_AVAILABLE):
        with contextlib.suppress(NoNodeError):
            value, _ = await store.get(paths.broker_available(name))
            broker = decode(BrokerRegistration, value)
            address = broker.service_url or broker.service_url_tls
            addresses[broker.actor_name] = address
            status.service_urls.append(address)
    for actor in status.actors:
        actor.address = actor.address or addresses.get(actor.name, "")
    return readonly


async def _take_large_records(status: ClusterStatus, store: MetadataStore) -> None:
    """Say which records in metadata are near their limits, as far as brokers wrote them."""
    for name in await store.children(paths.BROKER_LOADS):
        with contextlib.suppress(NoNodeError):
            load = decode(BrokerLoad, (await store.get(paths.broker_load(name)))[0])
            status.operator_notes += [f"metadata: {text}" for text in load.large_records]


async def _take_start_failures(status: ClusterStatus, store: MetadataStore) -> None:
    """Say why bookies do not start, which no process tells between two attempts."""
    failures: dict[str, BookieStartFailure] = {}
    for actor in status.actors:
        if actor.kind == "bookie" and not actor.address:
            with contextlib.suppress(NoNodeError):
                path = paths.bookie_start_failure(actor.name)
                failures[actor.name] = (await read(store, path, BookieStartFailure)).record
    for actor in status.actors:
        if (found := failures.get(actor.name)) is not None:
            times = "" if found.failures == 1 else f" ({found.failures} starts in a row)"
            actor.note = f"does not start: {found.error}: {found.explain(failures.values())}{times}"


async def _take_report(status: ClusterStatus, store: MetadataStore) -> None:
    """Add what the operator reports."""
    report = await load_report(store)
    if report is None:
        return
    status.operator, status.operator_notes = report.identity, list(report.notes)
    for actor in status.actors:
        actor.version = actor.version or report.versions.get(actor.name, "")
        reported = report.parts.get(actor.name)
        if reported and actor.note and actor.kind == "metadata":
            actor.note = reported if actor.note in reported else f"{actor.note}; {reported}"
        elif reported and not actor.note:
            # A part of which nothing else is wrong serves now, but was started again and again.
            actor.note, actor.is_warning = reported, actor.state == "ALIVE"


async def count_topics(store: MetadataStore) -> int:
    """Return the number of topics of public/default; a partitioned one counts once."""
    families = (
        (paths.topic, paths.partitioned_topic),
        (paths.non_persistent_topic, paths.non_persistent_partitioned),
    )
    count = 0
    for single, partitioned in families:
        parents = await _names(store, partitioned)
        for name in await _names(store, single):
            match = _PARTITION.fullmatch(name)
            count += match is None or match[1] not in parents
        count += len(parents)
    return count


async def _names(store: MetadataStore, path_of: Callable[[str, str, str], str]) -> set[str]:
    folder = path_of(TENANT, NAMESPACE, "any").rpartition("/")[0]
    try:
        return {unquote(name) for name in await store.children(folder)}
    except NoNodeError:
        return set()

"""Whether publishing goes on without all bookies: the sentences of ``helio status``, by what metadata says."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from heliograph.actors.auditor.ledger_scan import OnUnreadable, scan_records
from heliograph.actors.auditor.widest_ensemble import NAMESPACE_DEPTH
from heliograph.actors.ledger.placement.shortage import states_of, taking_entries
from heliograph.metadata import paths
from heliograph.metadata.model import BookieRegistration, NamespacePolicies, Persistence
from heliograph.metadata.store import MetadataStore

READS_AT_ONCE_MAX = 64  # metadata reads in flight (I15)
_DEFAULT = "public/default"  # its record has the numbers of copies of the cluster


async def publishing_notes(
    store: MetadataStore,
    writable: Collection[str],
    readonly: Mapping[str, BookieRegistration],
    on_unreadable: OnUnreadable | None = None,
    default: Persistence | None = None,
) -> list[str]:
    """Return notes if new ledgers do not get all copies: what continues with fewer, and what is stopped.

    Policies of single topics are not looked at.

    Args:
        on_unreadable: as ``scan_records`` has it.
        default: copies of namespaces that set none; None: not known, and taken from the record of public/default.

    Raises:
        MetadataError: the store failed.
    """
    namespaces = await scan_records(
        store, paths.NAMESPACES, NAMESPACE_DEPTH, NamespacePolicies, READS_AT_ONCE_MAX, on_unreadable
    )
    if default is None:
        default = namespaces[_DEFAULT].persistence if _DEFAULT in namespaces else Persistence()
    known = await store.children(paths.BOOKIES_COOKIES)
    stopped: int | None = None  # topics; 0 where only new ones are refused
    refused: int | None = None  # topics whose next ledger is refused; one that is open may go on with fewer copies
    going_on: Persistence | None = None
    for name, policies in namespaces.items():
        copies = policies.persistence if policies.has_own_copies else default
        if len(writable) < copies.ack_quorum:
            stopped = (stopped or 0) + await _topics_in(store, name)
        elif len(writable) < min(policies.minimum_write_copies, copies.write_quorum):
            refused = (refused or 0) + await _topics_in(store, name)
        elif len(writable) < copies.write_quorum and (going_on is None or copies.write_quorum > going_on.write_quorum):
            going_on = copies
    states = states_of(writable, writable, readonly, known)
    notes = []
    if stopped is not None:
        where = f"on {stopped} topics" if stopped else "on new topics"
        notes.append(f"publishing is stopped {where}: {taking_entries(len(writable))}; {states}")
    if refused is not None:
        notes.append(
            f"publishing is stopped by minimum_write_copies on {refused} topics, or stops with their next ledger: "
            f"{taking_entries(len(writable))}; {states}"
        )
    if going_on is not None:
        notes.append(f"publishing goes on with {len(writable)} of {going_on.write_quorum} copies: {states}")
    return notes


async def _topics_in(store: MetadataStore, namespace: str) -> int:
    tenant, _, name = namespace.partition("/")
    stat = await store.exists(paths.topic(tenant, name, "any").rpartition("/")[0])
    return 0 if stat is None else stat.num_children

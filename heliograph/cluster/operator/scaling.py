"""The checks before bookies are taken out: enough others for every ensemble, and no last copies on dead ones."""

from __future__ import annotations

from collections.abc import Collection

from heliograph.actors.auditor.checks import finding, named_bookies
from heliograph.actors.auditor.ledger_scan import scan_ledgers
from heliograph.actors.auditor.widest_ensemble import widest_ensemble
from heliograph.base.errors import ConflictError
from heliograph.metadata import paths
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.store import MetadataStore

READS_AT_ONCE_MAX = 16  # I15


async def require_others(store: MetadataStore, leaving: Collection[str], default_ensemble_size: int) -> None:
    """Check that the cluster can do without some bookies.

    Args:
        default_ensemble_size: of namespaces that do not set their own.

    Raises:
        ConflictError: too few writable bookies would be left for the widest ensemble, or one that is dead may hold the
            last copies of entries.
        MetadataError: the store failed.
    """
    ledgers = await scan_ledgers(store, READS_AT_ONCE_MAX)
    available = {*await store.children(paths.BOOKIES_AVAILABLE)}
    others = available - {*leaving, *await store.children(paths.BOOKIES_DRAINING)}
    widest = await widest_ensemble(store, default_ensemble_size, READS_AT_ONCE_MAX)
    needed = max([default_ensemble_size, widest, *(ledger.ensemble_size for ledger in ledgers)])
    if len(others) < needed:
        raise ConflictError(
            f"without {', '.join(sorted(leaving))}, {len(others)} writable bookies would be left, and there are topics "
            f"with an ensemble of {needed}: keep at least {needed} bookies, or lower ensemble_size",
            field="count",
            limit=f"at least {needed}",
        )
    alive = available | {*await store.children(paths.BOOKIES_READONLY)}
    dead = {*leaving} - alive
    last = [one.ledger_id for one in ledgers if _has_last_copies(one, dead, alive)]
    if last:
        raise ConflictError(
            f"{', '.join(sorted(dead))} may hold the last copies of entries in {len(last)} ledgers, such as {last[0]}: "
            "start the bookies that are down first",
            field="count",
        )


def _has_last_copies(ledger: LedgerMetadata, dead: Collection[str], alive: Collection[str]) -> bool:
    """An entry is acknowledged by Qa of the Qw bookies of its write set, so any Qw - Qa + 1 of them have a copy."""
    named = named_bookies([ledger])
    if not named.intersection(dead):
        return False
    return finding(ledger, named - set(alive)).copies_left < ledger.write_quorum - ledger.ack_quorum + 1

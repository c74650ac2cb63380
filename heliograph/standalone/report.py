"""The report of a cluster in one process, which this process keeps in place of an operator."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import replace

from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError
from heliograph.base.version import heliograph_version
from heliograph.metadata.model import Persistence
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metadata.store import MetadataStore
from heliograph.report.gathering import ALIVE, gather
from heliograph.report.record import REPORT_SECONDS, load_report, save_report, with_since

log = logging.getLogger(__name__)


async def keep_report(store: MetadataStore, addresses: Mapping[str, str], copies: Persistence) -> None:
    """Write the report now and every 10 s, until this is cancelled.

    Args:
        addresses: of the parts, by their names.
        copies: of namespaces that set none.
    """
    last: ClusterReport | None = None
    while True:
        try:
            last = await _write(store, addresses, copies, last or await load_report(store))
        except HeliographError as error:  # readers see the time of the last one
            log.warning("the report cannot be written: %s", error)
        await asyncio.sleep(REPORT_SECONDS)


async def _write(
    store: MetadataStore, addresses: Mapping[str, str], copies: Persistence, last: ClusterReport | None
) -> ClusterReport:
    pid, version = os.getpid(), heliograph_version()
    parts = [
        PartReport(name, name.partition("-")[0], ALIVE, address=address, pid=pid, version=version)
        for name, address in addresses.items()
    ]
    found = replace(await gather(store, parts, copies=copies), identity=f"process {pid}", as_of_ms=wall_ms())
    report = with_since(found, last)
    await save_report(store, report)
    return report

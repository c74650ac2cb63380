"""The check of the etcd members that a running cluster coordinates by."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from heliograph.base.errors import HeliographError
from heliograph.base.home import ClusterState
from heliograph.cluster.doctor.finding import CheckResult, ok, problem, warning
from heliograph.metadata.backends.etcd.wire.address import SCHEMES as ETCD_SCHEMES
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress

if TYPE_CHECKING:
    from heliograph.metadata.etcd_member.survey import Survey


def check_members(state: ClusterState) -> Iterator[CheckResult]:
    """Check the members of the etcd that a running cluster coordinates by; nothing if that is no etcd."""
    if not state.metadata_url.startswith(tuple(f"{scheme}://" for scheme in ETCD_SCHEMES)):
        return
    from heliograph.metadata.etcd_member.survey import survey  # it loads grpc, which a plain install lacks

    try:
        found = asyncio.run(survey(EtcdAddress.parse(state.metadata_url)))
    except HeliographError as error:
        yield problem("etcd members", str(error), "`helio metadata status` says more")
        return
    yield judged_members(found)


def judged_members(found: Survey) -> CheckResult:
    """Judge the answers of the etcd members. Pure."""
    serving = [member for member in found.members if member.is_serving]
    summary = f"{len(serving)} of {len(found.members)} serve"
    if found.trouble:
        return problem("etcd members", found.trouble, "start their nodes, or `helio metadata replace` for a lost disk")
    if alarmed := [f"{member.endpoint} {', '.join(member.alarms)}" for member in serving if member.alarms]:
        way_out = "helio metadata defragment; docs/operations/metadata.md says more"
        return problem("etcd members", f"{summary}; alarms: {'; '.join(alarmed)}", way_out)
    if len(serving) < len(found.members):
        silent = ", ".join(f"{member.endpoint}: {member.why}" for member in found.members if not member.is_serving)
        return warning("etcd members", f"{summary}; {silent}", "`helio status` says why; the next loss may be a stop")
    leader = next((member.name or member.endpoint for member in serving if member.is_leader), "none")
    versions = ", ".join(sorted({member.version for member in serving}))
    return ok("etcd members", f"{summary}, leader {leader}, etcd {versions}")

"""How a program outside the cluster gets the report: from the gateway, else from the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.base.home import ClusterState
from heliograph.client.admin.over_http import GatewayCalls
from heliograph.client.discovery import tls_options
from heliograph.client.identity import Identity
from heliograph.metadata import codec
from heliograph.metadata.connect import connect_store
from heliograph.metadata.credentials import with_secrets, without_password
from heliograph.metadata.operator_records import ClusterReport
from heliograph.report.members import members_trouble
from heliograph.report.record import current_report

ANSWER_SECONDS = 5.0  # of each of the two


def ask_report(cluster: ClusterState, secret: str | None) -> ClusterReport:
    """Return the report of a cluster. Blocks for 10 s at most.

    Where neither the gateway nor the metadata store answers, the report says why, and has no parts.

    Args:
        cluster: the notes of it.
        secret: the cluster's, which the embedded store asks for; None: the secret in the environment.
    """
    return asyncio.run(_asked(cluster, secret))


async def _asked(cluster: ClusterState, secret: str | None) -> ClusterReport:
    ways: list[tuple[str, Callable[[], Awaitable[ClusterReport]]]] = []
    if cluster.gateway_url and not cluster.own_pid:  # the gateway of one process would start for this alone
        gateway = GatewayCalls(cluster.gateway_url, cluster.namespace, tls_options(cluster.namespace))
        ways.append((f"the gateway at {gateway.url}", lambda: _of_gateway(gateway)))
    if cluster.metadata_url:
        store = f"the metadata store at {without_password(cluster.metadata_url)}"
        ways.append((store, lambda: _of_store(with_secrets(cluster.metadata_url, secret))))
    reasons = []
    for way, ask in ways:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await ask()
        except TimeoutError:
            reasons.append(f"{way} does not answer within {ANSWER_SECONDS:.0f} s")
        except HeliographError as error:
            reasons.append(f"{way} does not answer: {error}")
    return ClusterReport(is_silent=True, notes=tuple(reasons) or ("no address of the cluster is known here",))


async def _of_gateway(gateway: GatewayCalls) -> ClusterReport:
    return codec.decode(ClusterReport, await gateway.report(Identity.from_environment(), ANSWER_SECONDS))


async def _of_store(url: str) -> ClusterReport:
    if trouble := await members_trouble(url):
        raise ServiceNotReadyError(trouble)
    store = await connect_store(url)
    try:
        return await current_report(store)
    finally:
        await store.close()

"""The one file that creates actors: metadata, then bookies, brokers, auditor and gateway, each waited for.

All are named, detached and restarted for ever by Ray; a restarted one starts by itself (``hosting.py``). No call is
retried by Ray (it may have happened), and no actor has concurrency groups: Ray runs each group on a thread with an
event loop of its own, which would break every actor's promise of one thread of control. Nothing waits long inside an
actor call, so that a high ``max_concurrency`` keeps administrative calls from queueing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
import ray.exceptions

from actors.auditor.actor import AuditorActor
from actors.auditor.config import AuditorConfig
from actors.bookie.actor import BookieActor
from actors.bookie.config import BookieConfig
from actors.broker.actor import BrokerActor
from actors.broker.config import BrokerConfig
from actors.broker.tls import TlsFiles
from gateway.actor import GatewayActor
from heliograph.cluster import diagnosis, ports
from heliograph.cluster.hosting import hosted
from heliograph.cluster.parts import START_GROUPS, Part, parts_of
from heliograph.cluster.removal import existing, remove
from heliograph.config import ClusterConfig
from heliograph.discovery import METADATA
from heliograph.errors import ResourceError
from metadata.cluster_init import initialise
from metadata.connect import connect_store
from metadata.credentials import with_password
from metadata.embedded.actor import MetadataActor
from metadata.model import NamespacePolicies, Persistence
from metadata.occupancy import require_vacant
from metadata.paths import namespace
from metadata.update_loop import update

SESSION_TIMEOUTS_WAITED = 2  # for the registrations of a cluster that has died to go
CALLS_AT_ONCE_MAX = 10_000  # per actor; Ray's default of 1,000 lets waiting calls hold up administrative ones

Progress = Callable[[str], None]


@dataclass(slots=True)
class Deployed:
    """Where a deployed cluster listens."""

    metadata_url: str
    addresses: dict[str, str] = field(default_factory=dict)  # by actor name
    created: list[str] = field(default_factory=list)  # actors that were not there before


def deploy(config: ClusterConfig, progress: Progress, *, dashboard_url: str = "") -> Deployed:
    """Create what is missing of the cluster in the Ray that this process has joined, and wait until it serves.

    Raises:
        ResourceError: a part is not ready in ``start_timeout_ms``; names the part and the reason. What this call
            created is removed again, data excepted.
    """
    parts = _with_ports(parts_of(config, diagnosis.living_nodes()), config)
    deployed = Deployed(metadata_url=config.metadata_url or "")
    try:
        for kinds in START_GROUPS:
            group = [part for part in parts if part.kind in kinds]
            _start_group(group, config, deployed, dashboard_url)
            for part in group:
                address = deployed.addresses[part.name]
                progress(f"{part.name} serves" + (f" at {address}" if address != part.name else ""))
            if "metadata" in kinds:
                if group:
                    deployed.metadata_url = f"embedded://{deployed.addresses[METADATA]}"
                ours = {part.name for part in parts if existing(part.name, config.namespace) is not None}
                asyncio.run(_initialise(config, _with_credentials(config, deployed.metadata_url), ours))
    except BaseException:
        remove(deployed.created, config.namespace)
        raise
    return deployed


def _start_group(group: Sequence[Part], config: ClusterConfig, deployed: Deployed, dashboard_url: str) -> None:
    calls: dict[Any, Part] = {}
    for part in group:
        if existing(part.name, config.namespace) is None:
            deployed.created.append(part.name)
        handle = _create(part, config, _with_credentials(config, deployed.metadata_url), dashboard_url)
        calls[handle.start.remote()] = part
    deadline = time.monotonic() + config.start_timeout_ms / 1000
    waiting = list(calls)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            part = calls[waiting[0]]
            why = diagnosis.why_not_running(part.name, part.selector, config.namespace)
            raise ResourceError(f"{part.name} did not start in {config.start_timeout_ms / 1000:.0f} s: {why}")
        part = calls[done[0]]
        try:
            deployed.addresses[part.name] = str(ray.get(done[0]))
        except ray.exceptions.RayError as error:
            raise ResourceError(f"{part.name} did not start: {diagnosis.reason(error)}") from error


def _create(part: Part, config: ClusterConfig, metadata_url: str, dashboard_url: str) -> Any:
    actor_class, arguments = _class_and_arguments(part, config, metadata_url, dashboard_url)
    return (
        ray.remote(hosted(actor_class))
        .options(
            name=part.name,
            namespace=config.namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=CALLS_AT_ONCE_MAX,
            num_cpus=config.actor_cpus,
            label_selector=part.selector or None,
            runtime_env={"env_vars": _environment()},
        )
        .remote(*arguments)
    )


def _class_and_arguments(
    part: Part, config: ClusterConfig, metadata_url: str, dashboard_url: str
) -> tuple[type[Any], tuple[Any, ...]]:
    secret = config.cluster_secret.get_secret_value() if config.cluster_secret is not None else None
    if part.kind == "metadata":
        return MetadataActor, (str(part.directory), config.host, part.port)
    if part.kind == "bookie":
        assert part.directory is not None, "a bookie has a directory"
        bookie = BookieConfig(
            bookie_id=part.name,
            journal_directories=(part.directory / "journal",),
            data_directories=(part.directory / "ledgers",),
            host=config.host,
            port=part.port,
            rack=part.rack,
            session_timeout_ms=config.session_timeout_ms,
            cluster_secret=secret,
        )
        return BookieActor, (bookie, metadata_url)
    if part.kind == "broker":
        broker = BrokerConfig(
            broker_id=part.name,
            host=config.host,
            port=part.port,
            actor_name=part.name,
            ray_namespace=config.namespace,
            max_message_bytes=config.max_message_bytes,
            session_timeout_ms=config.session_timeout_ms,
            cluster_secret=secret,
            tls_port=part.tls_port if config.tls_certificate_file is not None else None,
            tls=_tls_of(config),
        )
        return BrokerActor, (broker, metadata_url)
    if part.kind == "auditor":
        auditor = AuditorConfig(
            lost_bookie_delay_ms=config.lost_bookie_delay_ms,
            audit_interval_ms=config.audit_interval_ms,
            open_ledger_grace_ms=config.open_ledger_grace_ms,
            session_timeout_ms=config.session_timeout_ms,
            cluster_secret=secret,
        )
        return AuditorActor, (auditor, metadata_url)
    assert part.kind == "gateway", "START_GROUPS names every kind"
    return GatewayActor, (_gateway_settings(part, config, metadata_url, dashboard_url),)


def _tls_of(config: ClusterConfig) -> TlsFiles | None:
    if config.tls_certificate_file is None or config.tls_key_file is None:
        return None
    return TlsFiles(
        str(config.tls_certificate_file),
        str(config.tls_key_file),
        str(config.tls_ca_file or ""),
        config.tls_require_client_certificate,
    )


def _gateway_settings(
    part: Part, config: ClusterConfig, metadata_url: str, dashboard_url: str
) -> Mapping[str, str | int]:
    return {
        "host": config.host,
        "port": part.port,
        "ray_namespace": config.namespace,
        "metadata_url": metadata_url,
        "dashboard_url": dashboard_url,
        "max_message_bytes": config.max_message_bytes,
        "tls_certificate_file": str(config.tls_certificate_file) if config.gateway_tls else "",
        "tls_key_file": str(config.tls_key_file) if config.gateway_tls else "",
    }


def _with_credentials(config: ClusterConfig, metadata_url: str) -> str:
    """The URL as actors get it: only they are told the password, which no file and no listing shows."""
    if config.metadata_password is None:
        return metadata_url
    return with_password(metadata_url, config.metadata_password.get_secret_value())


def _environment() -> dict[str, str]:
    environment = {"RAY_worker_niceness": "0"}  # Ray's default of 15 lets anything else starve a broker
    if mode := os.environ.get("RAY_AUTH_MODE"):
        environment["RAY_AUTH_MODE"] = mode
    return environment


def _with_ports(parts: Sequence[Part], config: ClusterConfig) -> list[Part]:
    """The parts with ports of their own, so that each comes back at its address after a restart by Ray.

    Bookies do without: only brokers connect to them, and find them through metadata.
    """
    taken = {part.port for part in parts} | {part.tls_port for part in parts}
    chosen = []
    for part in parts:
        port = part.port
        if not port and part.kind in ("metadata", "broker", "gateway"):
            port = ports.pick_free(config.host, taken=taken)
        taken.add(port)
        tls_port = part.tls_port
        if not tls_port and part.kind == "broker" and config.tls_certificate_file is not None:
            tls_port = ports.pick_free(config.host, taken=taken)
        taken.add(tls_port)
        chosen.append(replace(part, port=port, tls_port=tls_port))
    return chosen


async def _initialise(config: ClusterConfig, url: str, ours: Collection[str]) -> None:
    """Lay the store's ground, and make the configured numbers of copies the default namespace's own.

    Args:
        ours: names of the parts that run already.

    Raises:
        ConflictError: another cluster lives in the store.
    """
    store = await connect_store(url, session_timeout_ms=config.session_timeout_ms)
    try:
        await initialise(store)
        if config.metadata_url is not None:  # the embedded store of our own directory is nobody else's
            await require_vacant(store, ours, SESSION_TIMEOUTS_WAITED * config.session_timeout_ms)
        wanted = Persistence(config.ensemble_size, config.write_quorum, config.ack_quorum)
        await update(
            store,
            namespace("public", "default"),
            NamespacePolicies,
            lambda policies: None if policies.persistence == wanted else replace(policies, persistence=wanted),
        )
    finally:
        await store.close()

"""Checks of the ports and of a running cluster: its Ray, and the versions, limits and clocks of its parts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping

from heliograph.base.clock import iso_time, wall_ms
from heliograph.base.errors import HeliographError
from heliograph.base.home import ClusterState
from heliograph.base.peer import NODE
from heliograph.client import discovery
from heliograph.client.admin.over_http import GatewayCalls
from heliograph.cluster import ports
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.doctor.finding import CheckResult, ok, problem, warning
from heliograph.cluster.doctor.machine import OPEN_FILES_LEAST
from heliograph.cluster.doctor.through_gateway import Facts, answer_of, facts_through, installed_through
from heliograph.cluster.doctor.versions import (
    INSTALLED_SECONDS,
    check_installed,
    check_versions,
    homes,
    installed_versions,
)
from heliograph.cluster.head import launch
from heliograph.cluster.operator.storage import load_report
from heliograph.cluster.status.registrations import restored_backup_ms
from heliograph.metadata.connect import connect_store
from heliograph.metadata.credentials import with_secrets

ANSWER_SECONDS = 10.0
GATEWAY_SECONDS = 20.0  # for all parts to answer by way of the gateway
SKEW_WARNING_MS = 500
SKEW_PROBLEM_MS = 5_000


def check_ports(config: ClusterConfig, *, is_running: bool) -> Iterator[CheckResult]:
    """Check that the fixed ports of a cluster that is to be started are free.

    Args:
        is_running: the cluster runs, so that its parts have them.
    """
    host = "0.0.0.0" if config.host == NODE else config.host
    wanted = {
        "metadata_port": config.has_embedded_store,
        "etcd_port": config.has_etcd_members,
        "broker_port": not config.tls_only,
        "gateway_port": config.gateway,
    }
    for setting in (name for name, is_used in wanted.items() if is_used):
        port = getattr(config, setting)
        if port == 0:
            continue
        if ports.is_free(port, host):
            if is_running:
                continue  # of an earlier configuration, or on another node
            yield ok(setting, f"{port} on {host} is free")
        elif is_running:
            yield ok(setting, f"{port} on {host} is in use, and the cluster runs")
        else:
            flag = setting.replace("_", "-")
            yield problem(setting, f"{port} on {host} is in use", f"choose another with --{flag}, or 0 for a free one")


def check_ray_answers(state: ClusterState | None) -> CheckResult:
    """Check that the Ray of a recorded cluster answers. A cluster in one process has none: then that process."""
    if state is not None and state.own_process is not None:
        return ok("cluster", f"{state.namespace} in process {state.own_pid}, without Ray")
    if state is None or state.own_pid:
        return ok("cluster", "none runs from this home")
    if discovery.can_reach(state.ray_address):
        return ok("cluster", f"{state.namespace} in Ray at {state.ray_address}")
    silent = f"no Ray answers at {state.ray_address}"
    if state.node_address:
        return warning(
            "cluster",
            f"{silent}, the head of the cluster that this machine joined as {state.node_address}",
            "start the head on its own machine, or mend the network; `helio join` brings this node back, and "
            "`helio up` here would start another cluster",
        )
    if state.ray_pid and not launch.is_running(state.ray_process):
        return warning("cluster", f"{silent}: it has ended", "`helio up` starts it again: data stays")
    return problem("cluster", silent, "`helio down`, then `helio up`: data stays")


def check_parts(namespace: str, state: ClusterState, gateway: GatewayCalls | None = None) -> Iterator[CheckResult]:
    """Check the versions, limits and clocks of the parts of a running cluster.

    Args:
        gateway: is asked; where it does not answer or refuses the caller, Ray is joined.
    """
    found = answer_of(gateway, facts_through, GATEWAY_SECONDS)
    try:
        if found is None:
            gateway = None
            discovery.attach(namespace, address=state.ray_address)
        facts, silent = ask_parts(namespace) if found is None else found
    except HeliographError as error:
        yield problem("parts", str(error), "`helio status --ray` says more")
        return
    if silent:
        yield problem(
            "parts", f"no answer from {', '.join(sorted(silent))}", "see `helio status --ray` and `helio logs`"
        )
    yield from judged(facts)
    try:
        yield check_installed(_installed(namespace, state, gateway, facts))
    except HeliographError as error:
        yield problem("installed", str(error), "`helio status --ray` says more")


def _installed(
    namespace: str, state: ClusterState, gateway: GatewayCalls | None, facts: Mapping[str, Facts]
) -> dict[str, str]:
    with contextlib.suppress(HeliographError):  # of a part that cannot tell
        found = answer_of(gateway, lambda calls: installed_through(calls, facts), INSTALLED_SECONDS)
        if found is not None:
            return found
    discovery.attach(namespace, address=state.ray_address)
    return installed_versions(homes(facts))


def check_metadata(url: str, secret: str | None) -> Iterator[CheckResult]:
    """Check that the metadata store answers and waits for no decision after a restore; pass on the operator's notes.

    Args:
        secret: the cluster's, which the embedded store asks for; None: that of the environment.
    """
    try:
        backup_ms, notes = asyncio.run(_restored_backup_and_notes(url, secret))
    except (HeliographError, TimeoutError) as error:
        found = str(error) or f"it does not answer within {ANSWER_SECONDS:.0f} s"
        yield problem("metadata", found, "see `helio status --ray` and `helio logs metadata`")
        return
    if backup_ms:
        yield warning(
            "metadata",
            f"restored from a backup of {iso_time(backup_ms)}: no ledger is deleted, so disks fill up",
            "check that nothing later is needed (`helio backup verify`), then `helio backup accept`",
        )
    else:
        yield ok("metadata", "it answers")
    for note in notes:
        yield warning("operator", note, "`helio status` has the latest")


async def _restored_backup_and_notes(url: str, secret: str | None) -> tuple[int, tuple[str, ...]]:
    async with asyncio.timeout(ANSWER_SECONDS):
        store = await connect_store(with_secrets(url, secret))
        try:
            report = await load_report(store)
            return await restored_backup_ms(store), () if report is None else tuple(report.notes)
        finally:
            await store.close()


def judged(facts: Mapping[str, Facts]) -> Iterator[CheckResult]:
    """Judge what the parts answered. Pure.

    Args:
        facts: by part; ``skew_ms`` is the part's clock minus ours, and ``round_ms`` the time of the call.
    """
    if not facts:
        return
    yield check_versions(facts)
    few = sorted(name for name, fact in facts.items() if 0 <= fact["open_files_max"] < OPEN_FILES_LEAST)
    if few:
        yield problem(
            "open files of parts", f"fewer than {OPEN_FILES_LEAST}: {', '.join(few)}", "raise ulimit -n there"
        )
    yield _clocks(facts)


def _clocks(facts: Mapping[str, Facts]) -> CheckResult:
    nodes = {fact["node"]: fact for fact in sorted(facts.values(), key=lambda fact: fact["round_ms"], reverse=True)}
    # A clock is known to within half of the call's time.
    skews = {node: max(0.0, abs(fact["skew_ms"]) - fact["round_ms"] / 2) for node, fact in nodes.items()}
    node, worst = max(skews.items(), key=lambda item: item[1])
    found = f"{len(nodes)} nodes, at most {worst:.0f} ms from this one"
    way_out = f"run chrony or another NTP client on {node}: retention, delays and tokens go by the clock"
    if worst >= SKEW_PROBLEM_MS:
        return problem("clocks", found, way_out)
    return warning("clocks", found, way_out) if worst >= SKEW_WARNING_MS else ok("clocks", found)


def ask_parts(namespace: str) -> tuple[dict[str, Facts], set[str]]:
    """Return what each part says of its process, and the parts that do not answer.

    Raises:
        ClusterNotFoundError: there is no cluster.
    """
    import ray
    import ray.exceptions

    facts: dict[str, Facts] = {}
    silent = set()
    deadline = time.monotonic() + ANSWER_SECONDS
    for name in discovery.actor_names(namespace):  # one after another: a call's time bounds the error of its clock
        begun_ms, begun = wall_ms(), time.monotonic()
        try:
            handle = discovery.actor(name, namespace)
            answer = ray.get(handle.part_facts.remote(), timeout=max(0.1, deadline - time.monotonic()))
        except (ray.exceptions.RayError, HeliographError, AttributeError):
            silent.add(name)
            continue
        round_ms = (time.monotonic() - begun) * 1000
        facts[name] = {**answer, "round_ms": round_ms, "skew_ms": answer["wall_ms"] - (begun_ms + round_ms / 2)}
    return facts, silent

"""Checks of the ports and of a running cluster: its Ray, and what its operator reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heliograph.base.clock import iso_time
from heliograph.base.home import ClusterState
from heliograph.client import discovery
from heliograph.cluster import ports
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.doctor.finding import CheckResult, ok, problem, warning
from heliograph.cluster.doctor.machine import OPEN_FILES_LEAST
from heliograph.cluster.doctor.versions import check_installed, check_versions
from heliograph.cluster.head import launch
from heliograph.metadata.operator_records import ClusterReport, PartReport

SKEW_WARNING_MS = 500
SKEW_PROBLEM_MS = 5_000


def check_ports(config: ClusterConfig, *, is_running: bool) -> Iterator[CheckResult]:
    """Check that the fixed ports of a cluster that is to be started are free.

    Args:
        is_running: the cluster runs, so that its parts have them.
    """
    host = config.fixed_host
    for setting, port in config.fixed_ports.items():
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


def check_report(report: ClusterReport) -> Iterator[CheckResult]:
    """Judge the report of a running cluster. Pure.

    Args:
        report: without parts if nothing of the cluster answered; then its notes say why.
    """
    if not report.parts:
        found = "; ".join(report.notes) or "it has no parts"
        yield problem("report", found, "see `helio logs`; on a machine without the cluster's secret, `helio doctor` "
                      "where `helio up` ran")  # fmt: skip
        return
    if report.is_silent:
        silent, *notes = report.notes
        yield problem("operator", silent, "`helio up` starts an operator, and changes nothing else")
    else:
        notes = list(report.notes)
        yield ok("metadata", "it answers")
    if wrong := [part for part in report.parts if not part.is_well]:
        yield problem("parts", "; ".join(f"{part.name}: {part.note}" for part in wrong), "see `helio logs PART`")
    else:
        yield ok("parts", f"{len(report.parts)} serve")
    if report.underreplicated_ledgers > 0:
        missing = f"{report.underreplicated_ledgers} lack copies, {report.ledgers_damaged} of them have lost entries"
        yield warning("ledgers", missing, "`helio ledgers under-replicated` lists them; repair is under way")
    if report.restored_backup_ms:
        yield warning(
            "metadata",
            f"restored from a backup of {iso_time(report.restored_backup_ms)}: no ledger is deleted, so disks fill up",
            "check that nothing later is needed (`helio backup verify`), then `helio backup accept`",
        )
    told = [part for part in report.parts if part.version]
    if told and not report.is_silent:
        yield check_versions(told)
        few = sorted(part.name for part in told if 0 <= part.open_files_max < OPEN_FILES_LEAST)
        if few:
            yield problem(
                "open files of parts", f"fewer than {OPEN_FILES_LEAST}: {', '.join(few)}", "raise ulimit -n there"
            )
        if any(part.home for part in told):
            yield check_installed(told)
            yield _clocks(told)
    for note in (*report.publishing_notes, *notes):
        yield warning("operator", note, "`helio status` has the latest")


def _clocks(parts: Sequence[PartReport]) -> CheckResult:
    """Judge how far the clocks of nodes are from the operator's."""
    nodes = {part.home: part for part in sorted(parts, key=lambda part: part.round_ms, reverse=True)}
    # A clock is known to within half of the call's time.
    skews = {node: max(0.0, abs(part.skew_ms) - part.round_ms / 2) for node, part in nodes.items()}
    node, worst = max(skews.items(), key=lambda item: item[1])
    found = f"{len(nodes)} nodes, at most {worst:.0f} ms from the operator's"
    way_out = f"run chrony or another NTP client on {node}: retention, delays and tokens go by the clock"
    if worst >= SKEW_PROBLEM_MS:
        return problem("clocks", found, way_out)
    return warning("clocks", found, way_out) if worst >= SKEW_WARNING_MS else ok("clocks", found)

"""The Ray node of a machine that joins: started as a child in its own session, and stopped by its name."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from heliograph.base.errors import HeliographError, ResourceError
from heliograph.base.home import ClusterHome
from heliograph.base.processes import wait_until
from heliograph.base.system.processes import boot_id
from heliograph.cluster import labels, ports
from heliograph.cluster.head import launch
from heliograph.cluster.head.storage import RECONNECT_SECONDS, RECONNECT_VARIABLE
from heliograph.cluster.joining.record import NodeRecord, load_record
from heliograph.cluster.joining.view import OutsideView
from heliograph.cluster.settings.declared import joining_brokers, usable_cores
from heliograph.ray.process import PROGRAM

LEFT_SECONDS = 15.0  # for the raylet to tell the cluster that it ends
POLL_SECONDS = 0.25
OBJECT_STORE_BYTES = 512 << 20  # as that of a head; messages do not pass through it
# Options of Ray for the ports of a node, in the order in which they follow a given first one.
PORTS = (
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)


def start_node(record: NodeRecord, head: str, home: ClusterHome) -> NodeRecord:
    """Start the Ray node of a record without waiting for it; return the record with its process.

    Args:
        head: ``address:port`` where it joins.

    Raises:
        ResourceError: a port or a path cannot be used; names it. Nothing was started.
    """
    numbers = _ports_of(record)
    temporary = launch.temporary_directory()
    brokers = joining_brokers(usable_cores()) if record.labels.get(labels.BROKER) == labels.ANY else 0
    marks = {**({labels.BROKERS: str(brokers)} if brokers else {}), **record.labels}
    command = [
        *(sys.executable, *PROGRAM, "start", "--block", "--disable-usage-stats"),
        *(f"--address={head}", f"--node-ip-address={record.address}", f"--temp-dir={temporary / launch.RAY_FILES}"),
        *("--min-worker-port=0", "--max-worker-port=0"),
        *(f"--{name}={number}" for name, number in numbers.items()),
        f"--num-cpus={max(8, os.cpu_count() or 1)}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--labels={','.join(f'{key}={value}' for key, value in marks.items())}",
    ]
    environment = launch.node_environment(record.auth_mode) | {RECONNECT_VARIABLE: str(RECONNECT_SECONDS)}
    process = launch.spawn(command, environment, home)
    return replace(
        record,
        pid=process.pid,
        start_ticks=process.start_ticks,
        temporary_directory=str(temporary),
        boot=boot_id(),
    )


def wait_for_node(record: NodeRecord, view: OutsideView, before: frozenset[str], home: ClusterHome) -> None:
    """Wait until the cluster has the node.

    Args:
        before: ids of nodes at its address that are not this one.

    Raises:
        ResourceError: it did not start; quotes the last lines of its log, or of its raylet's.
    """
    deadline = time.monotonic() + launch.START_TIMEOUT_SECONDS
    was_running, has_ended = False, False
    while record.has_started and time.monotonic() < deadline:
        if has_ended := was_running and not record.is_running:
            break  # Ray's program may go on without its raylet, and says nothing of it
        was_running = was_running or record.is_running
        with suppress(HeliographError):
            if view.nodes_at(record.address) - before:
                return
        time.sleep(POLL_SECONDS)
    is_late = record.has_started and time.monotonic() >= deadline
    what = "was not in the cluster in time" if is_late else "did not start"
    why = launch.last_lines(home.ray_log)
    if has_ended:
        why = launch.end_of_raylet(Path(record.temporary_directory))
    raise ResourceError(f"the Ray node of {record.address} {what}: {why} (log: {home.ray_log})")


def require_running(home: ClusterHome) -> None:
    """Check that the Ray node of this machine runs.

    Raises:
        ResourceError: it has ended; quotes the last lines of its log.
    """
    known = load_record(home)
    if known is None or not known.is_running:
        raise ResourceError(
            f"the Ray node of this machine has ended: {launch.last_lines(home.ray_log)} (log: {home.ray_log}); run "
            "helio join again",
            field="node",
        )


def stop_node(record: NodeRecord) -> NodeRecord:
    """Stop the Ray node with all that runs on it; return the record without it. Nothing to do if it does not run.

    The raylet ends first and tells the cluster, which otherwise would notice only when the node has been silent.

    Raises:
        ResourceError: a process survives SIGKILL.
    """
    if (process := record.process) is not None:
        if (raylet := launch.raylet_of(process)) is not None:
            with suppress(ProcessLookupError):
                os.kill(raylet.pid, signal.SIGTERM)
            wait_until(lambda: not raylet.is_alive(), LEFT_SECONDS)
        launch.stop_ray(process, record.temporary_directory)
    return replace(record, pid=0, start_ticks=0, temporary_directory="", boot="")


def _ports_of(record: NodeRecord) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for number, name in enumerate(PORTS):
        if record.ray_port:
            chosen[name] = record.ray_port + number
            ports.require_free(chosen[name], record.address, "ray_port")
        else:
            key = f"{record.namespace}/{record.address}/{name}"
            chosen[name] = ports.pick_free("0.0.0.0", taken=chosen.values(), key=key)
    return chosen

"""A Ray of three labelled nodes on this machine, or of one without labels, as a process: run by ``test_your_ray.py``.

Nodes on one machine share the directory of a job's files, and each deletes what it does not use: jobs get one node. It
prints its addresses as JSON and ends with its standard input. Nothing in it knows of Heliograph.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from heliograph.cluster.ports import pick_free

LABELS: tuple[dict[str, str], ...] = (
    {"heliograph.io/broker": "true"},
    {"heliograph.io/bookie": "bookie-1", "heliograph.io/metadata": "true", "heliograph.io/rack": "r1"},
    {"heliograph.io/bookie": "bookie-2", "heliograph.io/rack": "r2"},
)
CPUS = 4
OBJECT_STORE_BYTES = 100 << 20


def main(*, for_jobs: bool) -> None:
    """Serve until the end of the standard input."""
    with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as directory:  # a socket's path is short
        serve(directory, [{}] if for_jobs else LABELS, with_dashboard=for_jobs)


def serve(directory: str, nodes: Sequence[dict[str, str]], *, with_dashboard: bool) -> None:
    """Run the nodes, with their files in ``directory``."""
    client_port = pick_free()
    options: dict[str, Any] = {
        "temp_dir": directory,
        "num_cpus": CPUS,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": with_dashboard,
        "dashboard_port": pick_free(taken={client_port}),
        "ray_client_server_port": client_port,
    }
    agent_ports = [pick_free() for _ in nodes]  # an older Ray takes 52365 for all
    cluster: Any = Cluster(
        initialize_head=True,
        head_node_args={**options, "labels": nodes[0], "dashboard_agent_listen_port": agent_ports[0]},
    )
    try:
        for labels, port in zip(nodes[1:], agent_ports[1:], strict=True):
            own = {"labels": labels, "dashboard_agent_listen_port": port}
            cluster.add_node(num_cpus=CPUS, object_store_memory=OBJECT_STORE_BYTES, **own)
        # As `ray start` does. Without it, a job is told the address of any Ray of this machine.
        (Path(directory) / "ray_current_cluster").write_text(cluster.address)
        told = {
            "address": cluster.address,
            "client": f"ray://127.0.0.1:{client_port}",
            "dashboard": f"http://{cluster.head_node.webui_url}" if with_dashboard else "",
        }
        print(json.dumps(told), flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(for_jobs="--for-jobs" in sys.argv)

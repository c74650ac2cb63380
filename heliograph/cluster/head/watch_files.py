"""The files by which others watch a cluster, on the machine of its head: what there is to scrape, and Ray's boards."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from heliograph.base.home import ClusterHome
from heliograph.client.discovery import GATEWAY
from heliograph.cluster.head.boards import give_boards_to_ray
from heliograph.cluster.naming import kind_of

TARGETS_FILE = "targets.json"  # in the home of the cluster: what Prometheus reads to find the parts


def targets_text(cluster: str, parts: Mapping[str, tuple[str, str]]) -> str:
    """Return the list of what there is to scrape, for Prometheus' discovery by files. Pure.

    Args:
        parts: by name, the URL of a part's metrics, and the address of its node. Parts without a URL are left out.
    """
    rows = []
    for name, (url, node) in sorted(parts.items()):
        if not url:
            continue
        where = urlsplit(url)
        labels = {
            "cluster": cluster,
            "component": kind_of(name),
            "name": name,
            "node": node,
            "__scheme__": where.scheme,
        }
        if name == GATEWAY:
            labels["__param_parts"] = "none"  # it tells those of the parts, too, if it is not told not to
        rows.append({"targets": [where.netloc], "labels": labels})
    return json.dumps(rows, indent=1) + "\n"


def keep_files(home: str, text: str) -> None:
    """Write the list of targets if it has changed, and the boards beside Ray's if one is missing.

    Raises:
        OSError: the list cannot be written.
    """
    file = Path(home) / TARGETS_FILE
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        made = file.with_suffix(".new")
        made.write_text(text, encoding="utf-8")
        os.replace(made, file)  # Prometheus reads it at any moment
    state = ClusterHome(Path(home)).load()
    give_boards_to_ray(state.ray_temporary_directory if state is not None else "", only_missing=True)

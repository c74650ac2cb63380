"""A cluster in a process of its own, which a test can kill: ``python -m ... <home> <port> <http port>``."""

from __future__ import annotations

import signal
import sys

import heliograph


def main(home: str, port: str, http_port: str) -> None:
    """Serve until a signal ends the process; a line on standard output says that it serves."""
    with heliograph.local(home, port=int(port), http_port=int(http_port)) as cluster:
        print(cluster.service_url, cluster.http_url, flush=True)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])

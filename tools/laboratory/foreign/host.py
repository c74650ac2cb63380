"""Heliograph in one process with one copy: ``python -m tools.laboratory.foreign.host <directory>``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from heliograph.standalone.config import StandaloneConfig
from heliograph.standalone.local import LocalCluster

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with LocalCluster(StandaloneConfig(bookies=1), Path(sys.argv[1])) as cluster:
        print(cluster.service_url, flush=True)
        signal.sigwait({signal.SIGTERM})

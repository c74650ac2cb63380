"""One run: its figures, the limits to compare them with and the private cluster, each made when first needed."""

from __future__ import annotations

import contextlib
import gc
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.figure import Aim, Figure, Limit
from tests.bench.process import end_in_order

if TYPE_CHECKING:
    from tests.bench.disk import DiskLimits
    from tests.bench.peer import PeerLimits
    from tests.bench.private_cluster import PrivateCluster

CACHED_BYTES = 512 << 20  # written to see what the page cache costs
QUICK_SHARE = 0.2  # of the usual time and number, with --quick


class Bench:
    """What sections are given.

    Attributes:
        directory: on the disk that is measured; deleted by whoever made it.
        is_quick: shorter runs and fewer rounds, for a first look.
        figures: everything measured so far.
    """

    def __init__(self, directory: Path, *, is_quick: bool) -> None:
        self.directory = directory
        self.is_quick = is_quick
        self.figures: list[Figure] = []
        self._owned = contextlib.ExitStack()
        self._cluster: PrivateCluster | None = None

    def add(
        self,
        section: str,
        name: str,
        value: float,
        unit: str,
        against: Limit,
        *,
        aim: Aim | None = None,
        **more: float | int | str,
    ) -> None:
        """Note a figure. ``against`` is what it is divided by; ``more`` explains it."""
        rounded = {key: round(part, 4) if isinstance(part, float) else part for key, part in more.items()}
        self.figures.append(Figure(section, name, value, unit, against, aim, rounded))

    def say(self, line: str) -> None:
        """Tell the person who waits what goes on."""
        print(f"  {line}", file=sys.stderr, flush=True)

    def seconds(self, usual: float) -> float:
        """How long to measure what is measured for ``usual`` seconds in a whole run."""
        return usual * QUICK_SHARE if self.is_quick else usual

    def count(self, usual: int) -> int:
        """How many, where a whole run takes ``usual``; at least 1."""
        return max(1, int(usual * QUICK_SHARE)) if self.is_quick else usual

    @cached_property
    def disk(self) -> DiskLimits:
        """This disk's own limit."""
        from tests.bench import disk

        self.say("measuring the disk")
        return disk.measure(self.directory / "disk", self.seconds(1.5), self.count(CACHED_BYTES))

    @cached_property
    def peer(self) -> PeerLimits:
        """What a bare fsynced log over TCP does on this machine."""
        from tests.bench import peer

        self.say("measuring a bare log over TCP")
        return peer.measure(self.directory / "peer", self.seconds(2.0))

    def measure_limits(self) -> None:
        """Have the limits measured now, and not in the middle of what is compared with them."""
        _ = self.disk, self.peer

    def cluster(self, *, bookies: int = 3, brokers: int = 1) -> PrivateCluster:
        """The run's cluster, started or completed to have at least so many of each."""
        from tests.bench.private_cluster import PrivateCluster

        if self._cluster is None:
            self.say("starting a private cluster")
            self._cluster = PrivateCluster(self.directory / "cluster")
            self._owned.callback(self._cluster.stop)
        self._cluster.grow(bookies=bookies, brokers=brokers)
        end_in_order()  # starting it joined Ray
        gc.collect()
        gc.freeze()  # of Ray and of all imports: going through their objects stops this process, the clock, for 0.1 s
        return self._cluster

    def close(self) -> None:
        """End everything that the run started."""
        self._owned.close()

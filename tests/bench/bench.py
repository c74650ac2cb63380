"""One run: its figures, the limits to compare them with, and its cluster, each created at first use."""

from __future__ import annotations

import contextlib
import gc
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import processor
from tests.bench.figure import Aim, Figure, Limit
from tests.bench.process import end_by_exception

if TYPE_CHECKING:
    from tests.bench.bookie.disk import DiskLimits, DiskYardstick
    from tests.bench.broker.private_cluster import PrivateCluster
    from tests.bench.peers.peer import PeerLimits
    from tests.bench.peers.relay import RelayLimits
    from tests.bench.processor import ProcessorYardstick

CACHED_BYTES = 512 << 20  # written to measure the cost of the page cache
YARDSTICK_SECONDS = 0.5
BACKLOG_BYTES, QUICK_BACKLOG_BYTES = 1 << 30, 256 << 20  # far more than the caches of a broker
QUICK_SHARE = 0.2  # share of the usual time and number, with --quick


class Bench:
    """The state of a run that is passed to its sections.

    Attributes:
        directory: a directory on the measured disk; the caller deletes it.
        is_quick: shorter runs and fewer rounds.
        backlog_bytes: size of the backlog that is read beside other topics.
        figures: all figures so far.
    """

    def __init__(self, directory: Path, *, is_quick: bool, backlog_bytes: int = 0) -> None:
        self.directory = directory
        self.is_quick = is_quick
        self.backlog_bytes = backlog_bytes or (QUICK_BACKLOG_BYTES if is_quick else BACKLOG_BYTES)
        self.figures: list[Figure] = []
        self._processor = processor.measure(YARDSTICK_SECONDS)
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
        """Add a figure. Its value is divided by ``against``; ``more`` explains it."""
        rounded = {key: round(part, 4) if isinstance(part, float) else part for key, part in more.items()}
        self.figures.append(Figure(section, name, value, unit, against, aim, rounded))

    def say(self, line: str) -> None:
        """Print a line of progress."""
        print(f"  {line}", file=sys.stderr, flush=True)

    def seconds(self, usual: float) -> float:
        """Return the seconds of a measurement that takes ``usual`` seconds in a full run."""
        return usual * QUICK_SHARE if self.is_quick else usual

    def count(self, usual: int) -> int:
        """Return the number that is ``usual`` in a full run; at least 1."""
        return max(1, int(usual * QUICK_SHARE)) if self.is_quick else usual

    @cached_property
    def disk(self) -> DiskLimits:
        """Return the limits of this disk, measured at first use."""
        from tests.bench.bookie import disk

        self.say("measuring the disk")
        return disk.measure(self.directory / "disk", self.seconds(1.5), self.count(CACHED_BYTES))

    @cached_property
    def peer(self) -> PeerLimits:
        """Return the figures of a bare fsynced log over TCP on this machine, measured at first use."""
        from tests.bench.peers import peer

        self.say("measuring a bare log over TCP")
        return peer.measure(self.directory / "peer", self.seconds(2.0))

    @cached_property
    def relay(self) -> RelayLimits:
        """Return what a bare relay before three bare logs does with one frame in flight, measured at first use."""
        from tests.bench.peers import relay

        self.say("measuring a bare relay with three logs")
        return relay.measure(self.directory / "relay", self.seconds(2.0))

    def yardsticks(self) -> dict[str, ProcessorYardstick | DiskYardstick]:
        """Return what this machine does by itself: at the start of the run, and now."""
        from tests.bench.bookie import disk

        last = processor.measure(YARDSTICK_SECONDS)
        return {
            "processor at the start": self._processor,
            "processor at the end": last,
            "disk": disk.yardstick(self.directory, YARDSTICK_SECONDS),
        }

    def measure_limits(self) -> None:
        """Measure the limits now, not in the middle of a measurement that is compared with them."""
        _ = self.disk, self.peer, self.relay

    def cluster(self, *, bookies: int = 3, brokers: int = 1, auditor: bool = False) -> PrivateCluster:
        """Return the run's cluster, with at least so many actors of each kind."""
        from tests.bench.broker.private_cluster import PrivateCluster

        if self._cluster is None:
            self.say("starting a private cluster")
            self._cluster = PrivateCluster(self.directory / "cluster")
            self._owned.callback(self._cluster.stop)
        self._cluster.grow(bookies=bookies, brokers=brokers, auditor=auditor)
        end_by_exception()  # starting the cluster joined Ray
        gc.collect()
        gc.freeze()  # the objects of Ray and of all imports: collecting them would stop this process for 0.1 s
        return self._cluster

    def new_cluster(self, *, bookies: int, brokers: int, auditor: bool = False) -> PrivateCluster:
        """Return another cluster in place of the run's, without what the sections before have stored."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
        return self.cluster(bookies=bookies, brokers=brokers, auditor=auditor)

    def close(self) -> None:
        """Stop everything that the run started."""
        self._owned.close()

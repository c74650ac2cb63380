"""The logs of a whole cluster: from the files of this machine, and from the actors of the others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heliograph.base.errors import (
    ClusterNotFoundError,
    ConnectionLostError,
    HeliographError,
    NotFoundError,
    RequestTimeoutError,
    ServiceNotReadyError,
)
from heliograph.base.home import LOGS, ClusterHome, ClusterState
from heliograph.base.peer import is_loopback
from heliograph.client import discovery
from heliograph.client.admin.over_http import GatewayCalls
from heliograph.client.admin.part_access import PartAccess
from heliograph.cluster.logs.files import LogChunk, LogPosition, parts_logged, read_log
from heliograph.cluster.logs.lines import LogLine, merged, parsed

ANSWER_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.5
_SILENT = (ClusterNotFoundError, ConnectionLostError, RequestTimeoutError, ServiceNotReadyError)
LOCAL_BYTES_MAX = 64 << 20  # read at once from one log of this machine # I15


class ClusterLogs:
    """The logs of the parts of one cluster, as far as this machine can read them."""

    def __init__(
        self, home: Path, namespace: str, parts: Collection[str] = (), gateway: GatewayCalls | None = None
    ) -> None:
        """
        Args:
            parts: those that are wanted; empty: all.
            gateway: passes on the questions to other machines; None, or one that does not answer: Ray is joined.

        Raises:
            NotFoundError: one of them has no log that can be read; names those that have.
            ClusterNotFoundError: there is no log at all, and no cluster.
        """
        self._directory = home / LOGS
        self._home = home
        self._namespace = namespace
        self._calls = PartAccess(namespace, gateway, self._attach)
        state = ClusterHome(home).load()
        self._local = parts_logged(self._directory)
        self._remote: list[str] = []
        if (missing := set(parts) - set(self._local)) or _has_other_machines(state):
            self._remote = self._names_of_parts()
            missing -= set(self._remote)
        known = sorted({*self._local, *self._remote})
        if missing and known:
            raise NotFoundError(f"{', '.join(sorted(missing))} has no log here: there are logs of {', '.join(known)}")
        if not known:
            raise ClusterNotFoundError(
                f"no logs in {self._directory}, and no cluster that runs: start one with `helio dev` or `helio up`"
            )
        if parts:
            self._local = [part for part in self._local if part in parts]
            self._remote = [part for part in self._remote if part in parts]
        self._places: dict[tuple[str, bool], LogPosition | None] = {}
        self.silent: set[str] = set()  # actors that did not answer the last time
        self.refused: dict[str, str] = {}  # why others did not tell their lines

    def ends(self, *, since_ms: int, level: str) -> list[LogLine]:
        """Return the last lines of all logs, ordered by time: 64 MiB of a file here, and 1 MiB of another node's."""
        return merged(self._read(), since_ms=since_ms, level=level)

    def further(self, *, level: str) -> list[LogLine]:
        """Return the lines that were written since the last call of this method or of ``ends``."""
        return merged(self._read(), level=level)

    def follow(self, *, level: str) -> Iterator[list[LogLine]]:
        """Yield further lines as they are written, for ever."""
        while True:
            time.sleep(POLL_SECONDS)
            if found := self.further(level=level):
                yield found

    def _read(self) -> Iterator[LogLine]:
        for part in self._local:
            chunk = read_log(self._directory, part, self._places.get((part, False)), LOCAL_BYTES_MAX)
            self._places[part, False] = chunk.position
            yield from parsed(chunk.data, part)
        for part, chunk in self._ask_actors().items():
            self._places[part, True] = chunk.position or self._places.get((part, True))
            yield from parsed(chunk.data, part)

    def _names_of_parts(self) -> list[str]:
        with contextlib.suppress(ClusterNotFoundError):
            try:
                return self._calls.names()
            except ClusterNotFoundError:
                raise
            except HeliographError:  # it refuses the caller: Ray asks for no credentials of Heliograph
                self._calls = PartAccess(self._namespace, None, self._attach)
                return self._calls.names()
        return []

    def _ask_actors(self) -> dict[str, LogChunk]:
        if not self._remote:
            return {}
        places = {part: self._places.get((part, True)) for part in self._remote}
        arguments = {part: [None if place is None else asdict(place)] for part, place in places.items()}
        try:
            found, failed = self._calls.ask("log_chunk", arguments, ANSWER_TIMEOUT_SECONDS)
        except ClusterNotFoundError as error:
            found, failed = {}, dict.fromkeys(self._remote, error)
        self.silent = {part for part, error in failed.items() if isinstance(error, _SILENT)}
        self.refused = {part: str(error) for part, error in failed.items() if part not in self.silent}
        return {part: _chunk_of(answer) for part, answer in found.items()}

    def _attach(self) -> None:
        discovery.attach(self._namespace, home=self._home)


def _chunk_of(answer: Mapping[str, Any]) -> LogChunk:
    position = answer["position"]
    return LogChunk(answer["data"], None if position is None else LogPosition(**position))


def _has_other_machines(state: ClusterState | None) -> bool:
    """Return whether parts may run elsewhere: on loopback, all of them are on this machine."""
    if state is None:
        return False
    hosts = [url.partition("://")[2].rpartition("@")[2].split(",")[0].rpartition(":")[0] for url in _addresses(state)]
    return not all(is_loopback(host) for host in hosts)


def _addresses(state: ClusterState) -> list[str]:
    return [url for url in (state.service_url, state.gateway_url) if url]

"""The logs of a whole cluster: from the files of this machine, and from the actors of the others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heliograph.base.addressing.part_handle import answers_of
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
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
from heliograph.client.identity import Identity
from heliograph.cluster.logs.files import LogChunk, LogPosition, parts_logged, read_log
from heliograph.cluster.logs.lines import LogLine, merged, parsed

ANSWER_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.5
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
        self._gateway = gateway
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
        identity = Identity.from_environment()
        if self._gateway is not None:
            try:
                return asyncio.run(self._gateway.parts(identity))
            except HeliographError:  # it is away, or refuses the caller: Ray asks for no credentials of Heliograph
                self._gateway = None
        try:
            discovery.attach(self._namespace, home=self._home)
            return discovery.actor_names(self._namespace)
        except ClusterNotFoundError:
            return []

    def _ask_actors(self) -> dict[str, LogChunk]:
        if not self._remote:
            return {}
        if self._gateway is not None:
            try:
                return asyncio.run(self._ask_through(self._gateway))
            except GatewayAwayError:  # gone, or of an earlier version
                self._gateway = None
                with contextlib.suppress(ClusterNotFoundError):
                    discovery.attach(self._namespace, home=self._home)
        calls: dict[str, Any] = {}
        self.silent, self.refused = set(), {}
        for part in self._remote:
            try:
                handle = discovery.actor(part, self._namespace)
            except HeliographError:
                self.silent.add(part)
                continue
            calls[part] = handle.log_chunk.remote(self._places.get((part, True)))
        if not calls:
            return {}
        found, failed = answers_of(calls, ANSWER_TIMEOUT_SECONDS)
        self.silent.update(failed)
        return found

    async def _ask_through(self, gateway: GatewayCalls) -> dict[str, LogChunk]:
        identity = Identity.from_environment()
        self.silent, self.refused = set(), {}
        found: dict[str, LogChunk] = {}

        async def ask(part: str) -> None:
            place = self._places.get((part, True))
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
                    arguments = [None if place is None else asdict(place)]
                    answer = await gateway.ask_part(part, "log_chunk", arguments, identity)
                position = answer["position"]
                found[part] = LogChunk(answer["data"], None if position is None else LogPosition(**position))
            except GatewayAwayError:
                raise
            except (ServiceNotReadyError, RequestTimeoutError, ConnectionLostError, TimeoutError):
                self.silent.add(part)
            except HeliographError as error:
                self.refused[part] = str(error)

        await asyncio.gather(*map(ask, self._remote))
        return found


def _has_other_machines(state: ClusterState | None) -> bool:
    """Return whether parts may run elsewhere: on loopback, all of them are on this machine."""
    if state is None:
        return False
    hosts = [url.partition("://")[2].rpartition("@")[2].split(",")[0].rpartition(":")[0] for url in _addresses(state)]
    return not all(is_loopback(host) for host in hosts)


def _addresses(state: ClusterState) -> list[str]:
    return [url for url in (state.service_url, state.gateway_url) if url]

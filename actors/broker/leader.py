"""The broker that assigns bundles: one is elected, and while there is none every broker goes by hash.

The leader is asked when a bundle has no owner, looks at the load reports at a fixed pace, and asks brokers that are
too busy to give bundles away. What it decides is advice only: who owns a bundle is decided by whoever makes its node
in metadata, so two leaders, or a leader that is gone without knowing, do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from actors.broker.load_balancer import BalanceLimits, LoadBalancer, Move
from actors.broker.load_report import read_loads
from actors.broker.ownership import Ownership, choose_by_hash
from heliograph.errors import HeliographError
from metadata.election import Election, Leadership
from metadata.errors import SessionExpiredError
from metadata.model import BrokerRegistration
from metadata.store import MetadataStore

ELECTION = "brokers"
ASK_SECONDS_MAX = 2.0  # for the leader's answer, before a broker goes by hash
MOVE_SECONDS_MAX = 30.0  # for a broker to give one bundle away
RETRY_SECONDS = 1.0  # between campaigns that fail

Json = dict[str, Any]

log = logging.getLogger(__name__)


class BrokerApi(Protocol):
    """What one broker asks of another as a broker, not as the owner of a topic."""

    async def asked(self, method: str, arguments: Json) -> Any:
        """Run one of the methods of ``admin_brokers.BrokerDuties``."""


class Leader:
    """This broker's candidacy, and what it does when it leads.

    Args:
        peer: finds another broker by its actor name; None: there is no way to it.
        balance_seconds: between two looks at the reports; 0: bundles are assigned and never shed.
        duties: coroutines run for as long as this broker leads.
    """

    def __init__(
        self,
        store: MetadataStore,
        ownership: Ownership,
        peer: Callable[[str], BrokerApi] | None,
        limits: BalanceLimits,
        balance_seconds: float,
        duties: Callable[[], list[Awaitable[None]]] = list,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._peer = peer
        self._balancer = LoadBalancer(limits)
        self._balance_seconds = balance_seconds
        self._duties = duties
        self._election = Election(store, ELECTION, ownership.registration.broker_id)
        self._task: asyncio.Task[None] | None = None
        self._leadership: Leadership | None = None
        self.moves_total = 0

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads; not one moment after its session was lost (I13)."""
        return self._leadership is not None and not self._leadership.lost.is_set()

    def start(self) -> None:
        """Stand for election, again and again."""
        self._ownership.choose = self.choose
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stand no more. Idempotent."""
        self._leadership = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            with contextlib.suppress(HeliographError):
                await self._election.resign()

    async def leader_id(self) -> str | None:
        """The broker that leads now."""
        return await self._election.leader()

    async def choose(self, path: str, live: Mapping[str, BrokerRegistration]) -> str | None:
        """The owner to be of a free bundle: as the leader says, by hash when no leader can be asked."""
        if self.is_leader:
            return await self.assign(path, live)
        leader = await self._election.leader()
        if leader is None or leader not in live or self._peer is None:
            return await choose_by_hash(path, live)
        if leader == self._ownership.registration.broker_id:  # elected this very moment
            return await choose_by_hash(path, live)
        try:
            peer = self._peer(live[leader].actor_name)
            chosen = await asyncio.wait_for(peer.asked("assign_bundle", {"path": path}), ASK_SECONDS_MAX)
        except (HeliographError, TimeoutError) as error:
            log.info("the leader %s cannot be asked about %s: %s", leader, path, error)
            chosen = None
        return chosen if chosen in live else await choose_by_hash(path, live)

    async def assign(self, path: str, live: Mapping[str, BrokerRegistration]) -> str | None:
        """The leader's choice."""
        return self._balancer.assign(path, _willing(live), await read_loads(self._store))

    async def balance(self) -> list[Move]:
        """Look at the reports once and have bundles moved; returns the moves that were made."""
        live = {broker.broker_id: broker for broker in await self._ownership.brokers()}
        reports = {name: report for name, report in (await read_loads(self._store)).items() if name in live}
        made = []
        for move in self._balancer.round(reports, _willing(live), time.monotonic()):
            log.info("%s leaves %s for %s", move.path, move.giver, move.receiver)
            try:
                await self._ask(live[move.giver], "unload_bundle", {"path": move.path})
            except (HeliographError, TimeoutError) as error:
                log.warning("%s did not leave %s: %s", move.path, move.giver, error)
                self._balancer.forget(move)
            else:
                self.moves_total += 1
                made.append(move)
        return made

    async def _ask(self, broker: BrokerRegistration, method: str, arguments: Json) -> Any:
        assert self._peer is not None, "shedding needs a way to the other brokers"
        return await asyncio.wait_for(self._peer(broker.actor_name).asked(method, arguments), MOVE_SECONDS_MAX)

    async def _run(self) -> None:
        while True:
            try:
                leadership = self._leadership = await self._election.campaign()
                log.info("%s leads the brokers", self._ownership.registration.broker_id)
                await self._lead(leadership.lost)
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("the election of a leader: %s", error)
                await self._take_vote_back()
            finally:
                self._leadership = None
            await asyncio.sleep(RETRY_SECONDS)

    async def _take_vote_back(self) -> None:
        while True:
            try:
                await self._election.resign()
                return
            except HeliographError:
                await asyncio.sleep(RETRY_SECONDS)

    async def _lead(self, lost: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        work = [asyncio.ensure_future(duty, loop=loop) for duty in self._duties()]
        if self._balance_seconds > 0 and self._peer is not None:
            work.append(loop.create_task(self._keep_balance()))
        try:
            await lost.wait()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _keep_balance(self) -> None:
        while True:
            await asyncio.sleep(self._balance_seconds)
            try:
                await self.balance()
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("balancing: %s", error)


def _willing(live: Mapping[str, BrokerRegistration]) -> list[str]:
    willing = [name for name, broker in live.items() if not broker.is_draining]
    return willing or list(live)

"""The elected broker that assigns bundles. While there is none, every broker assigns them by hash.

The other brokers ask the leader when a bundle has no owner. The leader reads the load reports at intervals, and tells
brokers that are too busy to unload bundles. Its decisions are advice: the owner of a bundle is the broker that creates
the bundle's node in metadata, so two leaders, or a leader that was replaced and does not know yet, do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from heliograph.actors.broker.balance.load_balancer import LoadBalancer, Move
from heliograph.actors.broker.balance.load_report import read_loads
from heliograph.actors.broker.config import BalanceLimits
from heliograph.actors.broker.namespaces.ownership import Ownership, choose_by_hash
from heliograph.base.errors import HeliographError
from heliograph.base.interval import Interval
from heliograph.metadata.errors import SessionExpiredError
from heliograph.metadata.model import BrokerRegistration
from heliograph.metadata.recipes.election import Election, Leadership
from heliograph.metadata.store import MetadataStore

ELECTION = "brokers"
ASK_SECONDS_MAX = 2.0  # for the leader's answer, before a broker chooses by hash
MOVE_SECONDS_MAX = 30.0  # for a broker to unload one bundle
RETRY_SECONDS = 1.0  # after an election that failed

Json = dict[str, Any]

log = logging.getLogger(__name__)


class BrokerApi(Protocol):
    """The calls from broker to broker that do not concern a topic."""

    async def asked(self, method: str, arguments: Json) -> Any:
        """Run one of the methods of ``admin_brokers.BrokerDuties``."""


class Leader:
    """This broker as a candidate in the election, and its work while it leads.

    Args:
        peer: finds another broker by its actor name; None if other brokers cannot be called.
        balance_seconds: between two looks at the reports; 0: bundles are assigned and never shed.
        duties: coroutines that run while this broker leads.
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
        self._interval = Interval(balance_seconds)
        self._duties = duties
        self._election = Election(store, ELECTION, ownership.registration.broker_id)
        self._task: asyncio.Task[None] | None = None
        self._leadership: Leadership | None = None
        self.moves_total = 0

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads; False from the moment that its session is lost (I13)."""
        return self._leadership is not None and not self._leadership.lost.is_set()

    def configure(self, limits: BalanceLimits, balance_seconds: float) -> None:
        """Balance by changed settings from now on."""
        self._balancer.limits = limits
        self._interval.set(balance_seconds)

    def start(self) -> None:
        """Take part in the election until ``stop``."""
        self._ownership.choose = self.choose
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Take no more part in the election. Idempotent."""
        self._leadership = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            with contextlib.suppress(HeliographError):
                await self._election.resign()

    async def leader_id(self) -> str | None:
        """Return the id of the leader, None without one."""
        return await self._election.leader()

    async def choose(self, path: str, live: Mapping[str, BrokerRegistration]) -> str | None:
        """Choose an owner for a bundle that has none: ask the leader, or choose by hash if it does not answer."""
        if self.is_leader:
            return await self.assign(path, live)
        leader = await self._election.leader()
        if leader is None or leader not in live or self._peer is None:
            return await choose_by_hash(path, live)
        if leader == self._ownership.registration.broker_id:  # elected just now
            return await choose_by_hash(path, live)
        try:
            peer = self._peer(live[leader].actor_name)
            chosen = await asyncio.wait_for(peer.asked("assign_bundle", {"path": path}), ASK_SECONDS_MAX)
        except (HeliographError, TimeoutError) as error:
            log.info("leader %s did not assign %s, choosing by hash: %s", leader, path, error)
            chosen = None
        return chosen if chosen in live else await choose_by_hash(path, live)

    async def assign(self, path: str, live: Mapping[str, BrokerRegistration]) -> str | None:
        """Choose an owner for a bundle, as the leader."""
        return self._balancer.assign(path, _willing(live), await read_loads(self._store))

    async def balance(self) -> list[Move]:
        """Read the load reports once and ask brokers to unload bundles. Return the moves that were made."""
        live = {broker.broker_id: broker for broker in await self._ownership.brokers()}
        reports = {name: report for name, report in (await read_loads(self._store)).items() if name in live}
        made = []
        for move in self._balancer.round(reports, _willing(live), time.monotonic()):
            log.info("moving %s from %s to %s", move.path, move.giver, move.receiver)
            try:
                await self._ask(live[move.giver], "unload_bundle", {"path": move.path})
            except (HeliographError, TimeoutError) as error:
                log.warning("%s was not unloaded by %s: %s", move.path, move.giver, error)
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
                log.info("%s was elected leader of the brokers", self._ownership.registration.broker_id)
                await self._lead(leadership.lost)
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("the election of a leader failed: %s", error)
                await self._withdraw()
            finally:
                self._leadership = None
            await asyncio.sleep(RETRY_SECONDS)

    async def _withdraw(self) -> None:
        while True:
            try:
                await self._election.resign()
                return
            except HeliographError:
                await asyncio.sleep(RETRY_SECONDS)

    async def _lead(self, lost: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        work = [asyncio.ensure_future(duty, loop=loop) for duty in self._duties()]
        if self._peer is not None:
            work.append(loop.create_task(self._keep_balance()))
        try:
            await lost.wait()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _keep_balance(self) -> None:
        while True:
            await self._interval.passes()
            try:
                await self.balance()
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("balancing the load failed: %s", error)


def _willing(live: Mapping[str, BrokerRegistration]) -> list[str]:
    willing = [name for name, broker in live.items() if not broker.is_draining]
    return willing or list(live)

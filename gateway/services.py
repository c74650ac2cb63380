"""The parts that all endpoints of one app share: its clients, sessions, limits and counters."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated, Any, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from heliograph.auth.audit import AuditLog
from heliograph.auth.authenticator import Authenticator
from heliograph.auth.config import AuditConfig
from heliograph.base.errors import HeliographError, NotPermittedError, ServiceNotReadyError
from heliograph.base.interval import until_tick
from heliograph.client.aio.client import AsyncClient
from heliograph.client.discovery import BROKER_PREFIX, GATEWAY
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManySessionsError
from heliograph.gateway.http.caller import Caller, caller_of
from heliograph.gateway.http.limits import BodyBudget, RateLimits, Shares
from heliograph.gateway.http.metrics import GatewayMetrics
from heliograph.gateway.ports import AdminPort, ClusterView, PartsPort
from heliograph.gateway.sessions.agents import Agents, RoleAgents
from heliograph.gateway.sessions.consumers import RestConsumers
from heliograph.gateway.sessions.producers import RestProducers
from heliograph.gateway.sessions.receivers import ReceiverRoom
from heliograph.gateway.sessions.task_queues import TaskQueues
from heliograph.metadata.operator_records import ClusterReport
from heliograph.metrics.history import History

REPORT_SECONDS = 2.0  # for the metadata store, and then for the brokers
SWEEP_SECONDS = 0.5  # how often idle REST sessions and overdue messages are looked for

log = logging.getLogger(__name__)


class OpenSlots:
    """Slots for handles and streams that are open at once, bounded in all, by address and by role (I15).

    Args:
        what: Of several of them.
        state, advice: For the error where all places are taken.
        setting: Of the bound for all. That of one caller is the same with ``per_caller_max``.
    """

    def __init__(self, config: GatewayConfig, setting: str, what: str, state: str, advice: str) -> None:
        self._max: int = getattr(config, setting)
        per_caller = setting.replace("_max", "_per_caller_max")
        self._shares = Shares(what, getattr(config, per_caller), per_caller)
        self._setting, self._what, self._state, self._advice = setting, what, state, advice
        self.open = 0

    @contextlib.contextmanager
    def taken(self, caller: Caller) -> Iterator[None]:
        """Hold one place for the length of the block.

        Raises:
            TooManySessionsError: no slot is free, for anyone or for the caller's address or role.
        """
        if self.open >= self._max:
            raise TooManySessionsError(
                f"{self.open} {self._what} {self._state}: {self._advice}, or raise {self._setting}",
                field=self._setting,
                limit=f"{self._max} {self._what.rpartition(' ')[2]}",
            )
        self._shares.take(caller)
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            self._shares.give_back(caller)


class SuperuserView:
    """A view of the cluster for a role that may not see it: every question is refused."""

    def __init__(self, role: str) -> None:
        self._role = role

    def __getattr__(self, name: str) -> Any:
        async def refused() -> None:
            raise NotPermittedError(f"{self._role} needs the right 'superuser' on the cluster", field="role")

        return refused


@dataclass
class Services:
    """The shared parts of one app. A request sees a copy with the client and the administration of its caller."""

    client: AsyncClient
    admin: AdminPort
    cluster: ClusterView
    config: GatewayConfig
    parts: PartsPort
    factory: RoleAgents | None = None
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    history: History = field(default_factory=History)
    started: float = field(default_factory=time.monotonic)
    # When the last status was requested, and the status, by role.
    statuses: dict[str, tuple[float, asyncio.Future[dict[str, Any]]]] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)  # of the map: ``PartSeen`` by the part's name
    caller: Caller = field(default_factory=lambda: Caller(""))

    def __post_init__(self) -> None:
        self.ends = asyncio.Event()  # the server ends: answers that last have to
        self.authenticator = Authenticator(self.config.auth)
        self.audit = AuditLog(AuditConfig(file=self.config.audit_file), GATEWAY)  # of failed log-ins
        self.authenticator.on_refused = self.audit.login_refused
        self.budget = BodyBudget(self.config)
        self.rates = RateLimits(self.config)
        slots = partial(OpenSlots, self.config)
        self.sessions = slots("websocket_sessions_max", "WebSocket sessions", "are open", "close some")
        self.requests = slots("open_requests_max", "requests", "wait for replies", "ask later")
        self.agents = Agents(self.client, self.admin, self.factory, self.config)
        self.producers = RestProducers(self.agents, self.config)
        self.task_queues = TaskQueues(self.agents, self.config)
        self.receivers = ReceiverRoom(self.config.receiver_bytes_max)
        self.consumers = RestConsumers(self.agents, self.config, self.receivers)
        self.task_looks = asyncio.Semaphore(1)  # of the page of tasks, which holds all states of a queue

    @contextlib.contextmanager
    def session(self, kind: str) -> Iterator[None]:
        """Hold the caller's place among the sessions for the length of one, which is counted by its kind.

        Raises:
            TooManySessionsError: as ``OpenSlots.taken``.
        """
        with self.sessions.taken(self.caller):
            self.metrics.add("sessions", kind)
            try:
                yield
            finally:
                self.metrics.add("sessions", kind, count=-1)

    def on_behalf_of(self, caller: Caller) -> Services:
        """Return the parts as one caller may use them.

        Raises:
            TooManySessionsError: too many roles have connections.
        """
        own = copy.copy(self)
        own.caller = caller
        own.admin = self.agents.admin_of(caller)
        principal = caller.principal
        if not principal.is_internal:
            own.client = self.agents.client_of(principal)
            if principal.role not in self.config.auth.superuser_roles:
                own.cluster = cast(ClusterView, SuperuserView(principal.role))
        return own

    async def report(self) -> ClusterReport:
        """Return the report of the cluster.

        Raises:
            NotPermittedError: the caller may not see it.
            ServiceNotReadyError: it cannot be read; says since when the metadata store is silent, if brokers know.
        """
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                return await self.cluster.report()
        except NotPermittedError:
            raise
        except (TimeoutError, HeliographError) as error:
            reason = await self._silence() or str(error) or f"no answer within {REPORT_SECONDS:.0f} s"
            raise ServiceNotReadyError(reason) from error

    async def _silence(self) -> str:
        """Return since when the metadata store is silent, as the first broker that answers tells it; else nothing."""
        with contextlib.suppress(HeliographError, TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS):
                for name in await self.parts.names():
                    if name.startswith(BROKER_PREFIX):
                        statistics = await self.parts.ask(name, "statistics", [])
                        if (silent := float(statistics["metadata_silent_seconds"])) < REPORT_SECONDS:
                            return ""
                        since = datetime.fromtimestamp(time.time() - silent)
                        return (
                            f"the metadata store is silent since {since:%H:%M:%S}: open topics are served, changes of "
                            "metadata wait"
                        )
        return ""

    @property
    def is_superuser(self) -> bool:
        """Whether the caller may see and do what concerns the whole cluster."""
        principal = self.caller.principal
        return principal.is_internal or principal.role in self.config.auth.superuser_roles

    def require_superuser(self, what: str, target: str = "") -> None:
        """Check that the caller may do what concerns the whole cluster.

        Args:
            what: named in the audit log if it is refused.

        Raises:
            NotPermittedError: it may not.
        """
        if not self.is_superuser:
            error = NotPermittedError(f"{self.caller.role} needs the right 'superuser' on the cluster", field="role")
            self.audit.refusal(self.caller.principal, what, target, self.caller.address, error)
            raise error

    async def masks(self, topic: str) -> bool:
        """Return whether the policy of a topic hides its payloads from the caller.

        It is asked in the gateway's own role, because a caller that may consume need not see policies.
        """
        if self.is_superuser:
            return False
        return bool((await self.agents.own.namespaces.topic_policies(topic, applied=True))["payloads_masked"])

    @contextlib.contextmanager
    def noting_change(self, what: str, target: str, arguments: Mapping[str, Any]) -> Iterator[None]:
        """Note in the gateway's audit log what the caller changes past the brokers, which have logs of their own; as
        done only if nothing is raised, and nobody cancels it."""
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            self.audit.change(self.caller.principal, what, target, arguments, failure, peer=self.caller.address)

    async def sweep(self) -> None:
        """Close idle sessions and redeliver overdue messages, for as long as the app runs."""
        while True:
            await asyncio.sleep(until_tick(SWEEP_SECONDS))
            await self.sweep_once(time.monotonic())

    async def sweep_once(self, now: float) -> None:
        """Run one round. A failure is logged and does not end the sweep; the next round tries again."""
        for part in (self.producers.expire, self.consumers.expire, self.task_queues.expire, self.agents.expire):
            try:
                await part(now)
            except Exception:
                log.exception("sweep of idle REST sessions failed")

    async def close(self) -> None:
        """Close every REST session. The clients stay open."""
        await self.consumers.close()
        await self.producers.close()
        await self.task_queues.close()
        await self.agents.close()
        self.authenticator.close()
        await self.audit.stop()


async def _services(connection: HTTPConnection) -> Services:
    services = connection.app.state.services
    assert isinstance(services, Services), "create_app sets the services"
    return services.on_behalf_of(caller_of(connection))


ServicesDep = Annotated[Services, Depends(_services)]

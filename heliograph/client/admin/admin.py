"""Administration through the brokers' actors: the operations of ``heliograph/operations``, async and blocking.

Any broker serves any operation (it forwards to the topic's owner where needed), so a call goes to one of them and, when
that one cannot be reached, to another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from itertools import repeat, takewhile
from typing import Any

from typing_extensions import override

from heliograph.base.errors import (
    ClusterNotFoundError,
    ConnectionLostError,
    HeliographError,
    RequestTimeoutError,
    UnsupportedError,
)
from heliograph.base.home import DEFAULT_NAMESPACE
from heliograph.client import discovery
from heliograph.client.admin.blocking import BlockingAdmin
from heliograph.client.admin.local_socket import ask
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
from heliograph.client.admin.repeating import answered
from heliograph.client.identity import Identity
from heliograph.operations.admin import AdminOperations
from heliograph.operations.table import AdminOperation

CALL_TIMEOUT_SECONDS = 30.0  # one attempt at one broker
ATTEMPTS_MAX = 8
RETRY_PAUSE_SECONDS = 0.5  # a killed broker is back, or its topics are elsewhere, in about 2 s
REPEATED_SECONDS = 60.0  # after which no attempt begins; a broker whose metadata store is away answers none in time


class Admin(AdminOperations):
    """The async form: the methods of ``TopicOperations``, and the other groups as attributes.

    It is not bound to an event loop, and needs a process that is in Ray or can join it.

    Args:
        namespace: Ray namespace of the cluster.
        identity: the caller's; None takes HELIOGRAPH_TOKEN or HELIOGRAPH_TOKEN_FILE, if one is set.
        gateway: asked instead of brokers while it answers, so that the process need not join Ray.

    Every method raises ClusterNotFoundError when there is no cluster, ConnectionLostError when no broker of it answers
    in any attempt, RequestTimeoutError when the outcome is unknown after all attempts, AuthenticationError when the
    caller's credentials are refused, NotPermittedError when the caller lacks the right to the operation, and otherwise
    what the operation raises.
    """

    def __init__(
        self,
        namespace: str = DEFAULT_NAMESPACE,
        identity: Identity | None = None,
        gateway: GatewayCalls | None = None,
    ) -> None:
        self._namespace = namespace
        self._gateway = gateway
        self._identity = Identity.from_environment() if identity is None else identity
        self._address = ""  # of the caller, if it is not this process
        self._preferred: str | None = None  # the broker that answered last
        self.run_through(self._run)

    def speaking_for(self, role: str) -> Admin:
        """Return an administration whose calls name ``role`` as their caller; only a proxy role may do so."""
        return self._with(identity=dataclasses.replace(self._identity, original_principal=role))

    @override
    def called_from(self, address: str) -> Admin:
        return self._with(address=address)

    def _with(self, identity: Identity | None = None, address: str = "") -> Admin:
        made = Admin(self._namespace, identity or self._identity, self._gateway)
        made._address = address or self._address
        made._preferred = self._preferred
        return made

    async def _run(self, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        return await answered(
            operation,
            self._choose,
            lambda name: self._remembered(name, operation, arguments),
            _pauses(time.monotonic),
        )

    async def _choose(self) -> str:
        if self._gateway is not None and not self._identity.original_principal:
            return self._gateway.url
        if self._preferred is not None:
            return self._preferred
        if own := await asyncio.to_thread(discovery.own_process_state, self._namespace):
            if not own.admin_socket:
                raise UnsupportedError(
                    f"process {own.own_pid}, which has the cluster, has no socket for administrative calls: its log "
                    "says why"
                )
            return own.admin_socket
        names = await asyncio.to_thread(discovery.broker_names, self._namespace)
        return random.choice(names)

    async def _remembered(self, name: str, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        """Ask one broker, and ask it first the next time if it has answered."""
        self._preferred = None
        answer = await self._ask(name, operation, arguments)
        self._preferred = name
        return answer

    async def _ask(self, name: str, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        if self._gateway is not None and name == self._gateway.url:
            try:
                return await self._gateway.run(operation, arguments, self._identity)
            except GatewayAwayError:
                self._gateway = None
                name = await self._choose()
        if name.startswith("/"):
            return await asyncio.wait_for(ask(name, operation, arguments, self._address), CALL_TIMEOUT_SECONDS)
        import ray.exceptions

        try:
            handle = await asyncio.to_thread(discovery.actor, name, self._namespace)
        except ClusterNotFoundError as error:
            raise ConnectionLostError(str(error)) from error  # this broker is gone; another may answer
        identity = self._identity
        credentials = await asyncio.to_thread(identity.present) if identity.blocks else identity.present()
        address = self._address or discovery.own_address()
        reference = handle.admin.remote(
            operation.name, operation.sparse(arguments), credentials, identity.original_principal or "", address
        )
        try:
            return await asyncio.wait_for(_awaited(reference), CALL_TIMEOUT_SECONDS)
        except TimeoutError:
            raise RequestTimeoutError(
                f"{name} did not answer {operation.name} within {CALL_TIMEOUT_SECONDS:.0f} s"
            ) from None
        except ray.exceptions.RayError as error:
            raise unwrapped(error, name) from error


class AdminSync(BlockingAdmin):
    """The blocking form of ``Admin``."""

    def __init__(
        self,
        namespace: str = DEFAULT_NAMESPACE,
        identity: Identity | None = None,
        gateway: GatewayCalls | None = None,
    ) -> None:
        super().__init__(Admin(namespace, identity, gateway))


def unwrapped(error: BaseException, name: str) -> HeliographError:
    """Return the error that an actor raised, without Ray's wrapping.

    Where Ray could not reach the actor, it is ConnectionLostError: the outcome of the call is unknown.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, HeliographError):
        return cause
    text = (str(cause or error).strip() or type(error).__name__).splitlines()[0]
    if cause is not None:
        return HeliographError(f"{name} failed with {type(cause).__name__}: {text}")
    return ConnectionLostError(f"{name} cannot be reached now: {text}")


def _pauses(now: Callable[[], float]) -> Iterator[float]:
    """Return the pauses between attempts, of which none begins too long after this call."""
    end = now() + REPEATED_SECONDS
    return takewhile(lambda _: now() < end, repeat(RETRY_PAUSE_SECONDS, ATTEMPTS_MAX - 1))


async def _awaited(reference: Any) -> Any:
    return await reference

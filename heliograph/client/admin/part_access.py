"""Calls of single parts of a cluster: through its gateway, or through Ray, which is joined if no gateway answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar, cast

from heliograph.base.addressing.part_handle import answers_of
from heliograph.base.errors import ClusterNotFoundError, HeliographError, NotFoundError, RequestTimeoutError
from heliograph.client import discovery
from heliograph.client.admin.admin import unwrapped
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
from heliograph.client.identity import Identity

CALL_SECONDS = 60.0
_ABSENCES = {discovery.OPERATOR: ": helio up starts it", discovery.AUDITOR: ", which moves and repairs data"}

T = TypeVar("T")
Arguments = Mapping[str, Sequence[Any]]  # by the name of the part
Answers = tuple[dict[str, Any], dict[str, HeliographError]]  # those of the parts, and the errors of the others


class PartAccess:
    """The parts of one cluster, for a program that need not be in Ray. Every call blocks.

    Args:
        gateway: passes the calls on; None: there is none.
        attach: joins the Ray of the cluster, or raises ClusterNotFoundError.
    """

    def __init__(self, namespace: str, gateway: GatewayCalls | None, attach: Callable[[], None]) -> None:
        self._namespace = namespace
        self._gateway = gateway
        self._attach = attach

    def names(self) -> list[str]:
        """Return the names of all parts.

        Raises:
            ClusterNotFoundError: there is no cluster.
            HeliographError: the gateway refuses the caller.
        """
        return self._through(
            lambda gateway: gateway.parts(Identity.from_environment()), lambda: discovery.actor_names(self._namespace)
        )

    def ask(self, method: str, arguments: Arguments, seconds: float) -> Answers:
        """Call a method of several parts at once.

        Args:
            arguments: for each part, by its name.
            seconds: for all of them. The outcome of calls that are late is unknown.

        Returns:
            the answers, in which records are dicts, and the errors of the other parts.

        Raises:
            ClusterNotFoundError: there is no cluster.
        """
        return self._through(
            lambda gateway: _by_gateway(gateway, method, arguments, seconds),
            lambda: _by_ray(self._namespace, method, arguments, seconds),
        )

    def ask_one(self, name: str, method: str, *arguments: Any) -> Any:
        """Return the answer of one part.

        Raises:
            NotFoundError: the cluster has no such part, or there is nothing of that name.
            ClusterNotFoundError: there is no cluster.
            HeliographError: as the method raises.
        """
        found, failed = self.ask(method, {name: arguments}, CALL_SECONDS)
        if name in failed:
            raise failed[name]
        return found[name]

    def _through(self, by_gateway: Callable[[GatewayCalls], Coroutine[Any, Any, T]], by_ray: Callable[[], T]) -> T:
        if self._gateway is not None:
            try:
                return asyncio.run(by_gateway(self._gateway))
            except GatewayAwayError:  # gone, or of an earlier version; nothing was done
                self._gateway = None
        self._attach()
        return by_ray()


def part_of(name: str, namespace: str) -> Any:
    """Return the handle of a part in the joined Ray.

    Raises:
        NotFoundError: the cluster has no such part.
        ClusterNotFoundError: there is no cluster.
    """
    try:
        return discovery.actor(name, namespace)
    except ClusterNotFoundError as error:
        if discovery.is_attached() and discovery.actor_names(namespace):
            raise NotFoundError(f"this cluster has no {name}{_ABSENCES.get(name, '')}", field=name) from error
        raise


async def _by_gateway(gateway: GatewayCalls, method: str, arguments: Arguments, seconds: float) -> Answers:
    identity = Identity.from_environment()
    found: dict[str, Any] = {}
    failed: dict[str, HeliographError] = {}

    async def ask(name: str) -> None:
        try:
            found[name] = await gateway.ask_part(name, method, list(arguments[name]), identity, seconds)
        except HeliographError as error:
            if isinstance(error, GatewayAwayError):
                raise
            failed[name] = error

    await asyncio.gather(*map(ask, arguments))
    return found, failed


def _by_ray(namespace: str, method: str, arguments: Arguments, seconds: float) -> Answers:
    calls: dict[str, Any] = {}
    failed: dict[str, HeliographError] = {}
    for name, of_part in arguments.items():
        try:
            calls[name] = getattr(part_of(name, namespace), method).remote(*of_part)
        except HeliographError as error:
            failed[name] = error
    answers, errors = answers_of(calls, seconds)
    for name, why in errors.items():
        is_late = isinstance(why, TimeoutError)
        failed[name] = RequestTimeoutError(f"{name}: {why}") if is_late else unwrapped(why, name)
    # A record becomes a dict, as on its way through the gateway.
    plain = {name: asdict(cast("Any", each)) for name, each in answers.items() if is_dataclass(each)}
    return answers | plain, failed

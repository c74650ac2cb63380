"""What the parts say of themselves, asked by way of the gateway: joining Ray would take seconds of processor time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from heliograph.base.clock import wall_ms
from heliograph.base.errors import (
    AuthenticationError,
    ConnectionLostError,
    HeliographError,
    NotPermittedError,
    RequestTimeoutError,
)
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
from heliograph.client.identity import Identity

UNANSWERED = (GatewayAwayError, ConnectionLostError, RequestTimeoutError, AuthenticationError, NotPermittedError)
T = TypeVar("T")

Facts = Mapping[str, Any]  # what ``part_facts`` of a hosted actor returns


def answer_of(
    gateway: GatewayCalls | None, ask: Callable[[GatewayCalls], Coroutine[Any, Any, T]], seconds: float
) -> T | None:
    """Return what the gateway answers; None where Ray has to be asked, which asks for no credentials of Heliograph."""
    if gateway is None:
        return None
    try:
        return asyncio.run(_within(ask(gateway), seconds))
    except (*UNANSWERED, TimeoutError):
        return None


async def facts_through(gateway: GatewayCalls) -> tuple[dict[str, Facts], set[str]]:
    """Return what each part says of its process, and the parts that do not answer.

    Raises:
        GatewayAwayError: the gateway does not answer.
        HeliographError: the caller is refused.
    """
    identity = Identity.from_environment()
    facts: dict[str, Facts] = {}
    silent = set()
    for name in await gateway.parts(identity):  # one after another: a call's time bounds the error of its clock
        begun_ms, begun = wall_ms(), time.monotonic()
        try:
            answer = await gateway.ask_part(name, "part_facts", [], identity)
        except UNANSWERED:
            raise
        except HeliographError:
            silent.add(name)
            continue
        round_ms = (time.monotonic() - begun) * 1000
        facts[name] = {**answer, "round_ms": round_ms, "skew_ms": answer["wall_ms"] - (begun_ms + round_ms / 2)}
    return facts, silent


async def installed_through(gateway: GatewayCalls, facts: Mapping[str, Facts]) -> dict[str, str]:
    """Return the version that each node with parts has installed, by its address, as one part of it finds out.

    Raises:
        HeliographError: a part cannot tell, as those of earlier versions.
    """
    identity = Identity.from_environment()
    one_of = {fact["node_address"]: name for name, fact in facts.items() if fact["node_address"]}
    found = await asyncio.gather(
        *(gateway.ask_part(name, "installed_version", [], identity) for name in one_of.values())
    )
    return dict(zip(one_of, map(str, found), strict=True))


async def _within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    async with asyncio.timeout(seconds):
        return await work

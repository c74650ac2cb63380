"""Requests made up from the gateway's OpenAPI document; each answer has to be one that the document names.

``python -m tests.fuzz.gateway_api --minutes 10 [--seed 1] [--stack]`` makes rounds of all operations for that time,
each of another seed, and stops at the first round that finds something. With ``--stack`` the gateway is asked over a
socket, and has brokers and bookies behind it. Exit codes: 0 nothing was found, 1 something was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from typing_extensions import override

from heliograph.gateway.services import Services
from tests.cluster.gateway.stack import running_stack
from tests.unit.gateway.world import FLIGHTS, Gateway, NoParts, View, World

BASE = "http://127.0.0.1:8080"
TOPICS = (FLIGHTS, "non-persistent://public/default/weather")
# Names that exist, so that requests get further than "there is no such thing".
NAMED = {"tenant": "public", "namespace": "default", "topic": "flights", "domain": "persistent", "subscription": "s"}
EXAMPLES_OF_A_ROUND = 30  # requests of each operation
SERVER_ERRORS = (501, 503)  # what is not offered, and what is not possible now
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@dataclass
class Round:
    """What one round of all operations found."""

    requests: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)  # the first of each operation


class Served(ABC):
    """A gateway, on a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    @property
    @abstractmethod
    def http(self) -> httpx.AsyncClient:
        """What sends requests to it."""

    @abstractmethod
    async def renew(self) -> None:
        """Create the topics and the subscription again: an operation may delete all there is."""

    @abstractmethod
    async def end(self) -> None:
        """Close the gateway."""

    def begin(self) -> None:
        """Prepare for the next operation."""
        self.loop.run_until_complete(self.renew())

    def close(self) -> None:
        """Close the gateway and the loop."""
        self.loop.run_until_complete(self.end())
        self.loop.close()

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = self.loop.run_until_complete(self.http.get("/openapi.json")).json()
        return found

    def answer(self, request: requests.PreparedRequest) -> httpx.Response:
        """Send a request."""
        assert request.method is not None, "it is prepared"
        target = httpx.URL(str(request.url)).raw_path
        body: Any = request.body or b""
        headers: Any = dict(request.headers)
        sent = self.http.request(
            request.method, self.http.base_url.copy_with(raw_path=target), headers=headers, content=body
        )
        return self.loop.run_until_complete(sent)


class InMemory(Served):
    """A gateway over a cluster in memory, without sockets."""

    def __init__(self) -> None:
        super().__init__()
        self._gateway = Gateway(rest_wait_ms_max=1)

    @property
    @override
    def http(self) -> httpx.AsyncClient:
        return self._gateway.http

    @override
    async def renew(self) -> None:
        services = self._gateway.app.state.services
        await services.close()
        world = World()
        await world.namespaces.begin(TOPICS)
        for name in TOPICS:
            world.add(name)
        world.topics[FLIGHTS].subscribe("s", "earliest")
        self._gateway.app.state.services = Services(cast(Any, world), world, View(), services.config, NoParts())

    @override
    async def end(self) -> None:
        await self._gateway.close()


class WithBrokers(Served):
    """A gateway on a socket, with brokers and bookies behind it."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.AsyncExitStack()
        self._directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-api-"))
        running = running_stack(Path(self._directory), brokers=1, rest_wait_ms_max=1)
        self._running = self.loop.run_until_complete(self._stack.enter_async_context(running))

    @property
    @override
    def http(self) -> httpx.AsyncClient:
        return self._running.http

    @override
    async def renew(self) -> None:
        await self.http.put("/admin/v2/tenants/public", json={})
        await self.http.put("/admin/v2/namespaces/public/default", json={})
        for name in TOPICS:
            await self.http.put(f"/admin/v2/{name.replace('://', '/')}")
        await self.http.put(f"/admin/v2/{FLIGHTS.replace('://', '/')}/subscription/s")

    @override
    async def end(self) -> None:
        await self._stack.aclose()


def run(examples: int, number: int = 0, served: Callable[[], Served] = InMemory) -> Round:
    """Make so many requests of each operation, half of them by the rules and half against them; the same for a seed."""
    found = Round()
    world = served()
    try:
        document = world.document
        document.pop("servers", None)
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=BASE)
        for result in schema.get_all_operations():
            operation: Any = result.ok()  # type: ignore[union-attr]  # the document is checked first
            if operation.path.endswith("/events"):
                continue  # its answer does not end
            world.begin()
            for kind in _kinds(operation):
                _run_one(operation, kind, max(1, examples // 3), number, world, found)
    finally:
        world.close()
    return found


@dataclass(frozen=True)
class Kind:
    """One kind of made-up data: by the rules of the document or against them, with names that exist or any."""

    mode: GenerationMode
    known: dict[str, str]  # values of path parameters


def _kinds(operation: Any) -> Iterator[Kind]:
    known = {name: value for name, value in NAMED.items() if f"{{{name}}}" in operation.path}
    yield Kind(GenerationMode.POSITIVE, {})
    if known:
        yield Kind(GenerationMode.POSITIVE, known)
    if list(operation.query) or list(operation.body):  # every text is a name, by its type
        yield Kind(GenerationMode.NEGATIVE, known)


def _run_one(operation: Any, kind: Kind, examples: int, number: int, world: Served, found: Round) -> None:
    """Run one operation with one kind of data, and note what is wrong."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(case=operation.as_strategy(generation_mode=kind.mode))
    def one(case: Case[Any]) -> None:
        case.path_parameters.update(kind.known)
        request = requests.Request(**_arguments(case)).prepare()
        answer = world.answer(request)
        found.requests += 1
        found.statuses[answer.status_code] = found.statuses.get(answer.status_code, 0) + 1
        problem = problem_of(case, request, answer)
        if problem:
            found.problems.setdefault(problem.partition(": ")[0], problem)

    with contextlib.suppress(Unsatisfiable):  # no data can be made against these rules
        one()


def _arguments(case: Case[Any]) -> dict[str, Any]:
    given = case.as_transport_kwargs(base_url=BASE)
    return {
        name: value for name, value in given.items() if name in ("method", "url", "headers", "params", "json", "data")
    }


def problem_of(case: Case[Any], request: requests.PreparedRequest, answer: httpx.Response) -> str:
    """Return what is wrong with an answer, empty if nothing is."""
    shown = f"{request.method} {request.url} {request.body!r:.300} -> {answer.status_code} {answer.text[:300]}"
    if answer.status_code >= 500 and answer.status_code not in SERVER_ERRORS:
        return f"{case.operation.label}: a server error: {shown}"
    try:
        case.validate_response(Response.from_any(answer), checks=CHECKS)
    except (Failure, FailureGroup) as error:
        failures = error.exceptions if isinstance(error, FailureGroup) else [error]
        titles = "; ".join(f"{failure.title}: {failure.message[:300]}" for failure in failures)
        return f"{case.operation.label}: {titles}: {shown}"
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.gateway_api", description="fuzz the gateway's API")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stack", action="store_true", help="with brokers and bookies behind the gateway")
    options = parser.parse_args(arguments)
    return run_for(options.minutes * 60, options.seed, WithBrokers if options.stack else InMemory)


def run_for(seconds: float, number: int, served: Callable[[], Served] = InMemory, *, rounds: int | None = None) -> int:
    """Make rounds of all operations for some time, or so many, print what they find, and return 1 if that is something.

    Each round is of another seed, the first of ``number``.
    """
    logging.getLogger("heliograph").addHandler(logging.NullHandler())
    end, last = time.monotonic() + seconds, None if rounds is None else number + rounds - 1
    while True:
        found = run(EXAMPLES_OF_A_ROUND, number, served)
        print(f"gateway API: seed {number}, {found.requests} requests, {len(found.problems)} problems", flush=True)
        for problem in found.problems.values():
            print(f"  {problem}", flush=True)
        if found.problems:
            return 1
        if time.monotonic() >= end if last is None else number >= last:
            return 0
        number += 1


if __name__ == "__main__":
    sys.exit(main())

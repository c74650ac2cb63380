"""The operator's view of Ray, and its hands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ray
import ray.exceptions
from typing_extensions import override

from heliograph.base.addressing.part_handle import (
    SHARED_PROCESS,
    NamedActors,
    SharedPart,
    find_shared_process,
    named_actors,
    shared_parts,
)
from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.client.discovery import OPERATOR
from heliograph.cluster.diagnosis import actor_id, living, reason
from heliograph.cluster.labels import Node
from heliograph.cluster.naming import CARDS, stranger_note
from heliograph.cluster.operator.changes import transfer
from heliograph.cluster.operator.planning import Sight
from heliograph.cluster.operator.ports import ActorState, ClusterPort, PartFacts
from heliograph.cluster.operator.shortage import Shortage, latest_shortage
from heliograph.cluster.removal import end, existing
from heliograph.metadata.operator_records import Roster
from heliograph.ray import gcs

FACTS_SECONDS = 3.0  # for a part's answer about itself
ASK_SECONDS = 60.0  # the auditor reads every ledger's record before it answers
STOP_SECONDS = 20.0  # for an orderly stop: a bookie flushes, a broker closes its topics
GONE_SECONDS = 30.0  # for Ray to forget an actor that it killed
POLL_SECONDS = 0.1
SHOWN_CHARACTERS_MAX = 250  # of the name of a call

_T = TypeVar("_T")
Create = Callable[..., None]  # of name and roster; with ``is_begun=False``, only describes a part of a shared process


class RayPort(ClusterPort):
    """One cluster in the Ray that this process is in.

    Args:
        create: creates the actor of a part, on any thread.
    """

    def __init__(self, namespace: str, create: Create) -> None:
        self._namespace = namespace
        self._create = create
        self._asked: dict[str, Any] = {}  # handles of the parts that answered a question about themselves last
        self._actors: dict[str, tuple[str, int]] = {}  # state and restarts of the actors of parts, by their ids
        self._restarts: dict[str, int] = {}  # by the ids of actors, when a shortage was looked for
        self._shortage: Shortage | None = None

    @override
    async def sight(self, homes: Mapping[str, str]) -> Sight:
        nodes, named, draining = await _looked_up(self._look)
        strangers = [stranger_note(name, self._namespace) for name in sorted(named.strangers)]
        return Sight(nodes, draining, named.parts, homes, strangers)

    @override
    async def facts(self, names: frozenset[str]) -> dict[str, PartFacts]:
        for name in self._asked.keys() - names:
            del self._asked[name]
        found = await asyncio.gather(*(self._facts_of(name) for name in names))
        return {name: facts for name, facts in zip(names, found, strict=True) if facts is not None}

    @override
    async def actors(self, names: frozenset[str]) -> dict[str, ActorState]:
        found = await asyncio.gather(*(self._existing(name) for name in names - self._asked.keys()))
        silent = dict(zip(names - self._asked.keys(), found, strict=True))
        handles = {name: handle for name, handle in {**silent, **self._asked}.items() if handle is not None}
        ids = {name: actor_id(handle) for name, handle in handles.items()}
        self._actors = await _looked_up(lambda: {actor: gcs.actor_state(actor) for actor in {*ids.values()}})
        return {name: ActorState(*self._actors[actor], name in self._asked) for name, actor in ids.items()}

    @override
    async def memory_shortage(self) -> Shortage | None:
        return await _looked_up(self._find_shortage, dict(self._asked))

    @override
    async def create(self, name: str, roster: Roster) -> None:
        await asyncio.to_thread(self._create, name, roster)

    @override
    async def started(self, name: str, seconds: float) -> str:
        try:
            await self._call(name, "start", seconds)
        except HeliographError as error:
            return str(error)
        return ""

    @override
    async def remove(self, name: str) -> None:
        if not await self._end(name):
            return
        async with asyncio.timeout(GONE_SECONDS):
            while await self._existing(name) is not None:  # noqa: ASYNC110 - Ray's state
                await asyncio.sleep(POLL_SECONDS)

    @override
    async def erase(self, name: str) -> bool:
        handle = await self._existing(name)
        if handle is None:
            return False
        await _answer(handle, name, "erase", ASK_SECONDS)
        return True

    @override
    async def ask(self, name: str, method: str, *arguments: Any) -> Any:
        return await self._call(name, method, ASK_SECONDS, *arguments)

    @override
    async def on_node(self, address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.to_thread(transfer.on_node, address, function, *arguments)

    async def show(self, text: str) -> None:
        """Have Ray's page of the operator's actor list a text, as the name of a call. Nothing waits for that."""
        with contextlib.suppress(HeliographError, ray.exceptions.RayError):
            handle = await self._existing(OPERATOR)
            if handle is not None and not isinstance(handle, SharedPart):
                shown = handle.verdict.options(name=text[:SHOWN_CHARACTERS_MAX], enable_task_events=True)
                shown.remote()

    async def note_gateway(self, url: str) -> None:
        """Have the cluster's card name the gateway's address. Raises ServiceNotReadyError if Ray does not answer."""
        await _looked_up(self._note_gateway, url)

    @override
    async def shared(self) -> frozenset[str]:
        return frozenset(await _looked_up(shared_parts, self._namespace))

    @override
    async def replace_shared(self, names: Sequence[str], roster: Roster) -> None:
        for name in names:
            await asyncio.to_thread(self._create, name, roster, is_begun=False)
        process = await _looked_up(find_shared_process, self._namespace)
        if process is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                await process.restart.remote()

    async def _end(self, name: str) -> bool:
        """Stop a part in good order and end its process. Return whether there was one."""
        handle = await self._existing(name)
        if handle is None:
            return False
        with contextlib.suppress(HeliographError):
            await self._call(name, "stop", STOP_SECONDS)
        with contextlib.suppress(ray.exceptions.RayError):
            await asyncio.to_thread(end, handle)
        return True

    async def _call(self, name: str, method: str, seconds: float, *arguments: Any) -> Any:
        handle = await self._existing(name)
        if handle is None:
            raise ServiceNotReadyError(f"{name} does not run")
        return await _answer(handle, name, method, seconds, *arguments)

    async def _facts_of(self, name: str) -> PartFacts | None:
        try:
            handle = self._asked.pop(name, None) or await self._existing(name)
            if handle is None:
                return None
            begun_ms, begun = wall_ms(), time.monotonic()
            found = await _answer(handle, name, "part_facts", FACTS_SECONDS)
            round_ms = (time.monotonic() - begun) * 1_000
            facts = PartFacts(
                str(found["version"]),
                str(found["node_address"]),
                int(found["starts"]),
                str(found["failure"]),
                str(found.get("memory", "")),  # the previous release does not tell, nor what is got below
                str(found.get("address", "")),
                int(pid) if (pid := found.get("pid")) is not None else None,
                str(found.get("installed", "")),
                dict(found.get("formats", {})),
                int(found["open_files_max"]),
                round(float(found["wall_ms"]) - (begun_ms + round_ms / 2), 1),
                round(round_ms, 1),
                str(found.get("metrics_address", "")),
            )
        except (HeliographError, LookupError, TypeError, ValueError):  # whatever that was, it does not tell
            return None
        self._asked[name] = handle
        return facts

    async def _existing(self, name: str) -> Any | None:
        return await _looked_up(existing, name, self._namespace)

    def _look(self) -> tuple[list[Node], NamedActors, frozenset[str]]:
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        ids = gcs.draining_nodes() if len(nodes) > 1 else frozenset()  # the only one has nowhere to drain to
        draining = frozenset(node["NodeManagerAddress"] for node in nodes if node["NodeID"] in ids)
        known = [name for name, handle in list(self._asked.items()) if not isinstance(handle, SharedPart)]
        return living(nodes), named_actors(self._namespace, known), draining

    def _note_gateway(self, url: str) -> None:
        key = self._namespace.encode()
        card = json.loads(gcs.value(key, CARDS) or b"{}")
        if card and card.get("gateway_url") != url:
            gcs.keep(key, json.dumps({**card, "gateway_url": url}).encode(), CARDS)

    def _find_shortage(self, handles: Mapping[str, Any]) -> Shortage | None:
        """Search the ends of all workers of Ray, which are many, if an actor of a part was started again."""
        actors = {
            actor_id(each): SHARED_PROCESS if isinstance(each, SharedPart) else name for name, each in handles.items()
        }
        restarts = {actor: self._actors.get(actor, ("", 0))[1] for actor in actors}
        if any(count > self._restarts.get(actor, 0) for actor, count in restarts.items()):
            found = latest_shortage(gcs.workers_ended_for_memory(), actors)
            self._shortage = found or self._shortage
            self._restarts = restarts
        return self._shortage


async def _looked_up(look: Callable[..., _T], *arguments: Any) -> _T:
    """Ask Ray on a thread. Ray answers late on a busy machine, and its errors must not end the operator.

    Raises:
        ServiceNotReadyError: Ray does not answer.
    """
    try:
        return await asyncio.to_thread(look, *arguments)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise ServiceNotReadyError(f"Ray does not answer: {reason(error)}") from error


async def _answer(handle: Any, name: str, method: str, seconds: float, *arguments: Any) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await getattr(handle, method).remote(*arguments)
    except TimeoutError:
        raise ServiceNotReadyError(f"{name} does not answer within {seconds:.0f} s") from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HeliographError):
            raise error.cause from error
        raise ServiceNotReadyError(f"{name}: {reason(error)}") from error
    except ray.exceptions.RayError as error:
        raise ServiceNotReadyError(f"{name} does not answer: {reason(error)}") from error
    except (AttributeError, TypeError) as error:  # no such method, or not with these arguments: of another release
        raise ServiceNotReadyError(f"{name} cannot be asked {method}: {error}") from error

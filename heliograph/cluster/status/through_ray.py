"""The status of a cluster as Ray, every actor, the metadata store and a broker tell it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import ray
import ray.exceptions

from heliograph.base.addressing.part_handle import named_actors
from heliograph.base.errors import HeliographError
from heliograph.base.home import ClusterState
from heliograph.client import discovery
from heliograph.client.admin.admin import Admin
from heliograph.cluster import diagnosis
from heliograph.cluster.naming import kind_of, sort_key, stranger_note
from heliograph.cluster.status.model import ActorStatus, ClusterStatus, explain, silence_note
from heliograph.cluster.status.registrations import ask_metadata

ANSWER_TIMEOUT_SECONDS = 5.0
# Addresses of bookies and brokers come from their registrations, those of these actors from their idempotent start.
_START_RETURNS_ADDRESS = (discovery.METADATA, discovery.GATEWAY)


def gather(namespace: str, state: ClusterState | None = None, *, secret: str | None = None) -> ClusterStatus:
    """Return the cluster's status. Joins its Ray.

    Args:
        secret: the cluster's, which the embedded store asks for; None: that of the environment.

    Raises:
        ClusterNotFoundError: there is no Ray, or no Heliograph in it.
    """
    names = sorted(discovery.actor_names(namespace), key=sort_key)
    address, dashboard = discovery.ray_addresses()
    status = ClusterStatus(namespace, address, dashboard, metadata_url=state.metadata_url if state else "")
    status.actors = [ActorStatus(name, kind_of(name)) for name in names]
    _ask_ray(status)
    asyncio.run(_ask_cluster(status, secret))
    strangers = [stranger_note(name, namespace) for name in sorted(named_actors(namespace).strangers)]
    status.operator_notes += [note for note in strangers if note not in status.operator_notes]
    explain(status)
    return status


def _ask_ray(status: ClusterStatus) -> None:
    states = diagnosis.actor_states(status.namespace)
    calls: dict[Any, ActorStatus] = {}
    facts: dict[Any, ActorStatus] = {}
    figures: dict[Any, ActorStatus] = {}
    for actor in status.actors:
        known = states.get(actor.name)
        if known is not None:
            actor.state, actor.pid, actor.restarts = known["state"], known["pid"], known["num_restarts"]
            if actor.state != "ALIVE":
                actor.note = diagnosis.why_not_running(actor.name, known["place"], status.namespace)
                continue
        method = "start" if actor.name in _START_RETURNS_ADDRESS else "pid"
        with contextlib.suppress(HeliographError):
            handle = discovery.actor(actor.name, status.namespace)
            calls[getattr(handle, method).remote()] = actor
            facts[handle.part_facts.remote()] = actor
            if actor.kind == "broker":
                figures[handle.statistics.remote()] = actor
    every = [*calls, *facts, *figures]
    done, late = ray.wait(every, num_returns=len(every), timeout=ANSWER_TIMEOUT_SECONDS) if every else ([], [])
    for call in calls.keys() & set(late):
        calls[call].note = f"does not answer within {ANSWER_TIMEOUT_SECONDS:.0f} s"
    for call in done:
        if call in calls:
            _take_answer(calls[call], call)
        elif call in figures:
            with contextlib.suppress(ray.exceptions.RayError):
                silent = float(ray.get(call).get("metadata_silent_seconds", 0))
                figures[call].note = figures[call].note or silence_note(silent, time.time())
        else:
            with contextlib.suppress(ray.exceptions.RayError):
                facts[call].version = str(ray.get(call)["version"])


def _take_answer(actor: ActorStatus, call: Any) -> None:
    try:
        answer = ray.get(call)
    except ray.exceptions.RayError as error:
        actor.note = diagnosis.reason(error)
        return
    actor.state = "ALIVE"
    if actor.name in _START_RETURNS_ADDRESS:
        actor.address = str(answer)
    elif actor.pid is None:  # else it is the actor's, as without Ray
        actor.pid = int(answer)


async def _ask_cluster(status: ClusterStatus, secret: str | None) -> None:
    for actor in status.actors:
        is_plain = not status.metadata_url.startswith("embeddeds://")  # the saved URL has the files of TLS
        if actor.name == discovery.METADATA and actor.address and is_plain:
            status.metadata_url = f"embedded://{actor.address}"
        if actor.name == discovery.GATEWAY:
            status.gateway_url = actor.address
    with contextlib.suppress(HeliographError, TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            await ask_metadata(status, secret)
    with contextlib.suppress(HeliographError, TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            status.topics = len(await Admin(status.namespace).list_topics())

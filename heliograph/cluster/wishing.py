"""How commands ask for a change of the cluster: a wish in its metadata, which the operator carries out.

A wish lasts, whatever ends meanwhile: the command, the operator, or all machines. A command on a machine that cannot
open the metadata store, because it lacks the cluster's secret, has the operator store its wish.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from heliograph.base.clock import wall_ms
from heliograph.base.errors import ConflictError, HeliographError, NotFoundError, ServiceNotReadyError
from heliograph.base.guard.handshake import secrets_in
from heliograph.base.home import ClusterHome
from heliograph.base.version import own_release, release_of
from heliograph.client import discovery
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.storage import load_roster, load_wish, store_wish
from heliograph.metadata import paths
from heliograph.metadata.connect import connect_store
from heliograph.metadata.credentials import with_secrets
from heliograph.metadata.errors import MetadataError
from heliograph.metadata.operator_records import Wish, WishKind, WishState
from heliograph.metadata.recipes.election import Election
from heliograph.metadata.store import MetadataStore
from heliograph.report.record import load_report

POLL_SECONDS = 1.0
UNANSWERED_SECONDS = 5.0  # after which the caller is told that no operator looks at the wish

Progress = Callable[[str], None]


class Asked(NamedTuple):
    """A wish of a command, with the arguments of ``wished``."""

    wish: Wish
    wait_seconds: float
    progress: Progress
    check: Callable[[], None]


class WishStore(NamedTuple):
    """How wishes are stored and read, and why no operator looks at one, as far as that is known."""

    store: Callable[[Wish], Awaitable[Wish]]
    load: Callable[[str], Awaitable[Wish | None]]
    silence: Callable[[], Awaitable[str]]


def wished(
    kind: WishKind,
    subject: str,
    arguments: dict[str, str],
    home: ClusterHome,
    namespace: str,
    *,
    wait_seconds: float,
    progress: Progress,
    check: Callable[[], None] = lambda: None,
) -> Wish:
    """Write a wish, and wait until it is carried out; a wish for the same that is open already is waited for.

    Args:
        subject, arguments: as ``Wish`` has them.
        wait_seconds: longest wait for its end; the wish stays.
        progress: is given a line about each change.
        check: is called at each look; what it raises ends the wait.

    Returns:
        the wish as it is then.

    Raises:
        BadRequestError, NotFoundError: the operator refuses it; or the cluster has no operator.
        ConflictError: the operator refuses it, or another wish excludes it or took its place.
        ServiceNotReadyError: neither the metadata store nor the operator answers; the wish may be stored.
    """
    wish = Wish(kind, subject, arguments, wall_ms())
    asked = Asked(wish, wait_seconds, progress, check)
    found = asyncio.run(_through_metadata(asked, home)) or asyncio.run(_through_operator(asked, home, namespace))
    if found.state is WishState.REFUSED:
        raise wishes.refusal(found)
    return found


async def _through_metadata(asked: Asked, home: ClusterHome) -> Wish | None:
    """Return the wish at the end of the wait; None if this machine cannot open the store."""
    state = home.load()
    if state is None or not state.metadata_url:
        return None
    url = with_secrets(state.metadata_url, secrets_in() or home.secret())
    deadline = time.monotonic() + asked.wait_seconds
    while True:
        try:
            store = await connect_store(url)
        except MetadataError as error:
            await _again(error, deadline, asked)
            continue
        except HeliographError:
            return None
        try:
            way = _in_metadata(store)
            asked = asked._replace(wish=await way.store(asked.wish))  # the open one is not asked for twice
            return await _followed(way, asked, deadline)
        except MetadataError as error:
            await _again(error, deadline, asked)
        finally:
            await store.close()


async def _again(error: HeliographError, deadline: float, asked: Asked) -> None:
    if time.monotonic() > deadline:
        raise ServiceNotReadyError(f"{error}; run this again, the wish may be stored", field="metadata") from error
    asked.progress(f"{error}; helio asks again")
    await asyncio.sleep(POLL_SECONDS)


def _in_metadata(store: MetadataStore) -> WishStore:
    async def put(wish: Wish) -> Wish:
        if await load_roster(store) is None:
            raise NotFoundError("this cluster has no operator: helio up starts it", field="operator")
        return await store_wish(store, wish)

    async def silence() -> str:
        if await Election(store, discovery.OPERATOR, "").leader() is None:
            return "no operator leads now; the wish is stored, and is carried out when one does"
        report = await load_report(store)
        if report is None or await store.exists(paths.OPERATOR_REPORT) is not None:  # both are there after a way back
            return wishes.older_operator("one without reports")
        version = next((part.version for part in report.parts if part.name == discovery.OPERATOR), "")
        return wishes.older_operator(version) if version and release_of(version) < own_release() else ""

    return WishStore(put, partial(load_wish, store), silence)


async def _through_operator(asked: Asked, home: ClusterHome, namespace: str) -> Wish:
    from heliograph.cluster.operator.calls import ask_operator  # it loads Ray, which the other way does without

    async def silence() -> str:
        return ""  # it has stored the wish

    discovery.attach(namespace, home=home.directory)

    def ask(method: str, argument: object) -> Awaitable[Any]:
        return asyncio.to_thread(ask_operator, namespace, method, argument)

    way = WishStore(partial(ask, "store_wish"), partial(ask, "load_wish"), silence)
    deadline = time.monotonic() + asked.wait_seconds
    while True:
        try:
            asked = asked._replace(wish=await way.store(asked.wish))
            return await _followed(way, asked, deadline)
        except ServiceNotReadyError as error:
            await _again(error, deadline, asked)


async def _followed(way: WishStore, asked: Asked, deadline: float) -> Wish:
    wish = asked.wish
    begun, said = time.monotonic(), ""
    while True:
        asked.check()
        now = await way.load(wish.subject)
        if now is None or now.asked_ms != wish.asked_ms:
            raise ConflictError(f"another wish took the place of {wishes.title(wish)!r}", field=wish.kind.value)
        line = await _line(now, begun, way.silence)
        if line and line != said:
            asked.progress(line)
            said = line
        if now.state not in wishes.OPEN or time.monotonic() >= deadline:
            return now
        await asyncio.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))


async def _line(wish: Wish, begun: float, silence: Callable[[], Awaitable[str]]) -> str:
    """Return what to say of a wish."""
    if wish.state is not WishState.ASKED:
        return wish.note if wish.state is not WishState.REFUSED else ""
    if not wish.note and time.monotonic() - begun > UNANSWERED_SECONDS:
        return await silence()
    return wish.note

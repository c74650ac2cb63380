"""The topics of every namespace that the caller may see, a page at a time, each with its figures."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse

from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    NamespaceNotFoundError,
    NotFoundError,
    NotPermittedError,
)
from heliograph.gateway.ports import AdminPort
from heliograph.gateway.services import Services, ServicesDep
from heliograph.protocol.topic_name import TopicName

PAGE_MAX = 200  # topics of one answer  # I15
LOOKED_MAX = 20_000  # names looked at for one answer  # I15
SECONDS_MAX = 2.0  # of looking, and then of asking for figures
ASKED_AT_ONCE_MAX = 16  # topics whose figures are asked for at the same time  # I15
TOGETHER = 1_000  # names that are read in one call
_AFTER_SLASH = "0"  # the character after "/"
_FIGURES = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut", "storageSize")

router = APIRouter(tags=["topics"])


@router.get("/admin/heliograph/topics", summary="Topics of all namespaces, in pages")
async def topics(
    services: ServicesDep,
    text: Annotated[str, Query(max_length=255, description="Somewhere in the local name; case does not count")] = "",
    namespace: Annotated[str, Query(max_length=600, description="Only this one, such as `public/default`")] = "",
    after: Annotated[str, Query(max_length=1024, description="`next` of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX, description="Topics of one page")] = 50,
) -> JSONResponse:
    """Return `topics`, by namespace and name, with rates, `storageSize`, `backlog` and `subscriptions` where their
    owner told them in time. `looked` says how many names were looked at; with `next` the search goes on, and without
    one it has seen everything. Namespaces that the caller may not see are left out.
    """
    search = TopicSearch(services.admin, text, limit)
    is_topic = "://" in after
    start = TopicName.parse(after).namespace if is_topic else after
    if namespace:
        await search.namespace(namespace, after if is_topic else "")
    else:
        async for names, end in _namespaces(services, start):
            for name in names:
                if name > start or (name == start and is_topic):
                    with contextlib.suppress(NotPermittedError, NamespaceNotFoundError):
                        await search.namespace(name, after if name == start else "")
                    search.pause(name)
                if search.next:
                    break
            search.pause(end)
            if search.next:
                break
    await _add_figures(services, search.found)
    return JSONResponse({"topics": search.found, "looked": search.looked, "next": search.next})


class TopicSearch:
    """One page: names are looked at until there are enough, or a bound is reached.

    Attributes:
        next: the start of the next page; empty if this page is not full.
    """

    def __init__(self, admin: AdminPort, text: str, limit: int) -> None:
        self.found: list[dict[str, Any]] = []
        self.looked = 0
        self.next = ""
        self._admin = admin
        self._wanted = text.casefold()
        self._limit = limit
        self._deadline = time.monotonic() + SECONDS_MAX

    def pause(self, place: str) -> None:
        """End the page behind a place, if its time is over and it has not ended before."""
        if not self.next and time.monotonic() >= self._deadline:
            self.next = place

    async def namespace(self, name: str, after: str) -> None:
        """Look through the topics of a namespace after one of them."""
        while not self.next:
            page = await self._admin.list_topics(name, after=after, limit=TOGETHER)
            for row in page:
                self.looked, after = self.looked + 1, str(row["name"])
                if self._wanted in after.rpartition("/")[2].casefold():
                    self.found.append({"name": after, "partitions": int(row["partitions"])})
                if len(self.found) >= self._limit or self.looked >= LOOKED_MAX:
                    self.next = after
                    return
            if len(page) < TOGETHER:
                return
            self.pause(after)


async def _namespaces(services: Services, start: str) -> AsyncIterator[tuple[list[str], str]]:
    """Yield the namespaces that the caller may list, tenant by tenant, in the order of their names from ``start`` on.

    With each tenant comes what is after all of its names and before those of the next one.
    """
    admin = services.admin
    try:
        tenants = await admin.namespaces.tenants()
    except NotPermittedError:
        raise NotPermittedError(
            f"{services.caller.role} may not list tenants: name a namespace", field="namespace"
        ) from None
    ends = sorted(f"{tenant}{_AFTER_SLASH}" for tenant in tenants)
    for end in ends:
        if end > start:
            names = list[str]()
            with contextlib.suppress(NotPermittedError, BadRequestError, NotFoundError):
                names = sorted(await admin.namespaces.list(end[:-1]))
            yield names, end


async def _add_figures(services: Services, rows: list[dict[str, Any]]) -> None:
    gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def add(row: dict[str, Any]) -> None:
        async with gate:
            with contextlib.suppress(HeliographError, TimeoutError):  # it moves, is deleted, or may not be seen
                async with asyncio.timeout(SECONDS_MAX):
                    stats = await services.admin.topic_stats(row["name"])
                subscriptions = stats.get("subscriptions", {}).values()
                row |= {figure: stats.get(figure, 0) for figure in _FIGURES}
                row["subscriptions"] = len(subscriptions)
                backlogs = [one.get("backlogMessages", one["msgBacklog"]) for one in subscriptions]
                row["backlog"] = max(backlogs, default=0)

    await asyncio.gather(*map(add, rows))

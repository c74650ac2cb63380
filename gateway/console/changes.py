"""Changes of the cluster by the console, and the view of the audit log. For superusers.

A change is a wish in the cluster's metadata, which the operator carries out; ``helio scale``, ``restart``, ``bookies
replace`` and ``nodes`` write the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError, ConflictError, HeliographError, NotFoundError
from heliograph.client import discovery
from heliograph.gateway.admin.routes import json_object
from heliograph.gateway.services import Services, ServicesDep
from heliograph.metadata.operator_records import ClusterReport, PartReport, Wish, WishKind

AUDIT_SECONDS = 5.0  # a broker that takes longer is named among the silent ones
COUNT_MAX = 1_000  # of bookies or brokers
ALL_PARTS = "parts"  # the subject of a rolling restart
OF_BOOKIES = (WishKind.REPLACE, WishKind.RECOVER, WishKind.DECOMMISSION, WishKind.KEEP)

router = APIRouter(include_in_schema=False)


@router.post("/admin/heliograph/wishes")
async def wish(request: Request, services: ServicesDep) -> dict[str, Any]:
    """Have the operator store a wish: ``kind``, ``subject``, and ``count`` or ``names``; return it as it is stored."""
    services.require_superuser("wish")
    body = await json_object(request)
    asked = _wish_of(body, await services.report())
    with services.noting_change(f"wish {asked.kind.value}", asked.subject, asked.arguments):
        found: Wish = await services.parts.ask(discovery.OPERATOR, "store_wish", [asked])
    return {**asdict(found), "kind": found.kind.value, "state": found.state.value}


def _wish_of(body: dict[str, Any], report: ClusterReport) -> Wish:
    """Return the wish that a body describes.

    Raises:
        BadRequestError: it is none that the console makes.
        NotFoundError: the cluster has no such part.
        ConflictError: a restart would begin an upgrade, which needs the checks of the command.
    """
    kind, subject = body.get("kind"), body.get("subject")
    if kind == WishKind.SCALE.value:
        return _scaling(subject, body.get("count"))
    parts = {part.name: part for part in report.parts}
    if kind == WishKind.RESTART.value:
        return _restart(body.get("names") or [], parts)
    for each in OF_BOOKIES:
        if kind == each.value:
            _require(subject, {name: part for name, part in parts.items() if part.kind == "bookie"})
            return Wish(each, str(subject), {}, wall_ms())
    kinds = [WishKind.SCALE, WishKind.RESTART, *OF_BOOKIES]
    raise BadRequestError(f"kind is {kind!r}", field="kind", limit=", ".join(each.value for each in kinds))


def _scaling(subject: Any, count: Any) -> Wish:
    if subject not in ("bookies", "brokers"):
        raise BadRequestError("scale bookies or brokers", field="subject")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= COUNT_MAX:
        raise BadRequestError(f"count is {count!r}", field="count", limit=f"1 to {COUNT_MAX}")
    return Wish(WishKind.SCALE, subject, {"count": str(count)}, wall_ms())


def _restart(names: Any, parts: Mapping[str, PartReport]) -> Wish:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequestError("names are a list of parts", field="names")
    for name in names:
        _require(name, parts)
    if newer := [part for part in parts.values() if part.installed and part.installed != part.version]:
        raise ConflictError(
            f"{newer[0].name} runs {newer[0].version} where {newer[0].installed} is installed: "
            "`helio restart --rolling` checks whether the upgrade can begin",
            field="version",
        )
    return Wish(WishKind.RESTART, ALL_PARTS, {"names": " ".join(names)} if names else {}, wall_ms())


def _require(name: Any, parts: Mapping[str, PartReport]) -> None:
    if name not in parts:
        raise NotFoundError(f"the cluster has no {str(name)[:100]!r}", field="subject")


@router.get("/admin/heliograph/audit")
async def audit(services: ServicesDep) -> dict[str, Any]:
    """Return the latest lines of the audit logs of all brokers and of this gateway, the newest first.

    They are of the processes that run; files and the topic of the configuration have the earlier ones. ``is_kept``:
    whether any part keeps an audit log; ``silent``: why a broker's lines are missing, by its name.
    """
    services.require_superuser("audit")
    lines = list(services.audit.recent)
    is_kept, silent = services.audit.is_enabled, {}
    names = [name for name in await services.parts.names() if name.startswith(discovery.BROKER_PREFIX)]
    for name, told in zip(names, await asyncio.gather(*(_asked(services, name) for name in names)), strict=True):
        if isinstance(told, str):
            silent[name] = told
        else:
            lines += told["lines"]
            is_kept = is_kept or told["is_kept"]
    lines.sort(key=lambda line: str(line["time"]), reverse=True)
    return {"lines": lines, "is_kept": is_kept, "silent": silent}


async def _asked(services: Services, broker: str) -> dict[str, Any] | str:
    try:
        async with asyncio.timeout(AUDIT_SECONDS):
            found: dict[str, Any] = await services.parts.ask(broker, "asked", ["audit", {}])
            return found
    except (TimeoutError, HeliographError) as error:
        return str(error) or f"no answer within {AUDIT_SECONDS:.0f} s"

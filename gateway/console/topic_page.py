"""All that the console's page of a topic shows, in one answer: plots, subscriptions, ledgers, schemas, policies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse

from heliograph.base.errors import HeliographError
from heliograph.gateway.services import ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody
from heliograph.protocol.topic_name import TopicName

LEDGERS_SHOWN_MAX = 50  # of one partition, the newest  # I15
PART_SECONDS = 5.0  # what takes longer is named among the problems

Row = dict[str, Any]
Samples = Sequence[float | None]

router = APIRouter(tags=["topics"], responses={404: {"model": ErrorBody, "description": "No such topic"}})


@router.get("/admin/heliograph/topic", summary="Everything of a topic")
async def topic_page(
    services: ServicesDep, name: Annotated[str, Query(min_length=1, max_length=1024, description="Full name")]
) -> JSONResponse:
    """Return `plots` of two hours, `subscriptions` with their consumers and why they do not move, `partitions`,
    `producers`, `ledgers` with their segments, `schemas` and `policies` with where each comes from. `problems` says
    what could not be told, or is not for the caller's role.
    """
    topic, admin = TopicName.parse(name), services.admin
    count = await admin.partitions(str(topic))
    stats = dict(await admin.topic_stats(str(topic)))
    problems: list[str] = []

    async def told(what: str, asked: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(PART_SECONDS):
                return await asked
        except (HeliographError, TimeoutError) as error:
            problems.append(f"{what}: {str(error) or 'no answer in time'}")
            return None

    history, internal, schemas, own, shared, applied = await asyncio.gather(
        told("two hours", admin.topic_history(str(topic))),
        told("ledgers", admin.topic_internal_stats(str(topic))),
        told("schemas", admin.schemas.versions(str(topic))),
        told("policies", admin.namespaces.topic_policies(str(topic))),
        told("policies", admin.namespaces.policies(topic.namespace, own=True)),
        told("policies", admin.namespaces.topic_policies(str(topic), applied=True)),
    )
    parts = stats.get("partitions") or {}
    return JSONResponse(
        {
            "partitionCount": count,
            "inRate": stats["msgRateIn"],
            "outRate": stats["msgRateOut"],
            "stored": stats["storageSize"],
            "broker": stats.get("ownerBroker") or "",
            "plots": [] if history is None else plots_of(history["series"]),
            "stepSeconds": 0 if history is None else history["step_seconds"],
            "ageSeconds": 0 if history is None else history["age_seconds"],
            "subscriptions": [
                {**one, "name": subscription, "why": stall_reason(one)}
                for subscription, one in sorted(stats["subscriptions"].items())
            ],
            "partitions": [{**part, "name": each, "subscriptions": None} for each, part in sorted(parts.items())],
            "producers": stats["publishers"],
            "ledgers": _ledgers(internal or {}),
            "schemas": [{key: one[key] for key in ("version", "type", "schema")} for one in schemas or ()],
            "policies": policies_of(own or {}, shared, applied or {}),
            "problems": sorted(set(problems)),
        }
    )


def stall_reason(subscription: Mapping[str, Any]) -> str:
    """Return why a subscription that is behind does not move, the first reason that holds; empty if it does."""
    consumers, unacknowledged = subscription["consumers"], subscription["unackedMessages"]
    behind, entries = subscription.get("backlogMessages", subscription["msgBacklog"]), subscription["msgBacklog"]
    if not behind:
        return ""
    if not consumers:
        return "no consumer is connected"
    if subscription["blockedSubscriptionOnUnackedMsgs"]:
        return f"blocked: {unacknowledged} messages are not acknowledged, as many as the subscription may have"
    if all(one["blockedConsumerOnUnackedMsgs"] for one in consumers):
        return "blocked: every consumer has as many unacknowledged messages as it may"
    if entries and subscription["msgDelayed"] >= entries:
        return f"delayed: {subscription['msgDelayed']} entries are due later"
    if unacknowledged >= behind:
        return "all is delivered and waits for acknowledgements"
    if all(one["availablePermits"] <= 0 for one in consumers):
        held = "full window: consumers hold messages and ask for no more"
        return held if unacknowledged else "no permits: consumers ask for no messages"
    return ""


def plots_of(series: Iterable[Any]) -> list[Row]:
    """Return the plots of a topic's history, with the partitions added up: title, form (``n`` a number, ``s`` seconds)
    and lines, pairs of a label and its samples."""
    by_line: dict[tuple[str, str], list[Samples]] = {}
    for key, samples in series:
        metric, _, *subscription = key
        by_line.setdefault((metric, subscription[0] if subscription else ""), []).append(samples)
    backlogs = sorted(line for line in by_line if line[0] == "backlog_messages")
    shown = (
        ("Messages each second", "n", [("in", ("in_messages_rate", "")), ("out", ("out_messages_rate", ""))], False),
        ("Mean time from arrival to receipt", "s", [("publish", ("publish_seconds", ""))], True),
        ("Backlog, messages", "n", [(line[1], line) for line in backlogs], False),
    )
    length = max((len(samples) for parts in by_line.values() for samples in parts), default=0)
    found = []
    for title, form, lines, is_mean in shown:
        drawn = [[label, _together(by_line[line], length, is_mean)] for label, line in lines if line in by_line]
        if drawn:
            found.append({"title": title, "form": form, "lines": drawn})
    return found


def _together(parts: Sequence[Samples], length: int, is_mean: bool) -> list[float | None]:
    """Return the sums, or means, of samples that end together."""
    found: list[float | None] = []
    for back in range(length, 0, -1):
        values = [value for part in parts if len(part) >= back and (value := part[-back]) is not None]
        found.append((sum(values) / (len(values) if is_mean else 1)) if values else None)
    return found


def _ledgers(internal: Mapping[str, Any]) -> list[Row]:
    parts = internal.get("partitions") or {"": internal}
    rows = []
    for part, stats in sorted(parts.items()):
        for ledger in stats.get("ledgers", ())[-LEDGERS_SHOWN_MAX:]:
            firsts = [segment["firstEntryId"] for segment in ledger["ensembles"]]
            ends = [*firsts[1:], max(ledger["entries"], firsts[-1] + 1)] if firsts else []
            rows.append(
                {
                    "ledger": ledger["ledgerId"],
                    "partition": part.rpartition("-partition-")[2],
                    "entries": ledger["entries"],
                    "bytes": ledger["size"],
                    "state": f"{ledger['state']}, {'cold' if ledger.get('offloaded') else 'hot'}",
                    "segments": [
                        {"first": segment["firstEntryId"], "entries": end - first, "bookies": segment["bookies"]}
                        for segment, first, end in zip(ledger["ensembles"], firsts, ends, strict=True)
                    ],
                }
            )
    return rows


def policies_of(own: Mapping[str, Any], shared: Mapping[str, Any] | None, applied: Mapping[str, Any]) -> list[Row]:
    """Return each policy with its value and where that comes from; ``shared`` are those of the namespace, None if they
    are not known."""

    def source(name: str) -> str:
        if name in own:
            return "this topic"
        if shared is None:
            return "namespace or cluster"
        return "namespace" if name in shared else "cluster"

    return [
        {"policy": name, "value": json.dumps(value), "from": source(name)} for name, value in sorted(applied.items())
    ]

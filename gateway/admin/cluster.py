"""Pulsar's administrative REST interface for the cluster, its brokers and bookies; and the lookup of a topic's owner
over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse

from heliograph.base.errors import HeliographError, NotFoundError, ServiceNotReadyError
from heliograph.base.version import heliograph_version
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody
from heliograph.gateway.shapes.topics import TopicInUrl
from heliograph.gateway.shapes.url_segments import decoded

READY_SECONDS = 5.0  # a broker that takes longer to answer is not ready

router = APIRouter(tags=["cluster"], responses={404: {"model": ErrorBody, "description": "No such thing"}})


@router.get("/admin/v2/clusters", summary="List clusters")
async def clusters(services: ServicesDep) -> list[str]:
    """Return the name of the one cluster."""
    return [services.config.cluster_name]


@router.get("/admin/v2/clusters/{cluster}", summary="A cluster")
async def cluster(services: ServicesDep, cluster: str) -> dict[str, Any]:
    """Return the addresses of the cluster's services."""
    _check_cluster(services, cluster)
    brokers = await services.cluster.brokers()
    return {"serviceUrl": "", "brokerServiceUrl": ",".join(broker.service_url for broker in brokers)}


@router.get("/admin/v2/brokers", summary="List brokers")
async def brokers(services: ServicesDep) -> list[str]:
    """Return `host:port` of each live broker."""
    return [_authority(broker.service_url) for broker in await services.cluster.brokers()]


@router.get("/admin/v2/brokers/health", summary="Health", response_class=PlainTextResponse)
@router.get("/admin/v2/brokers/ready", summary="Readiness", response_class=PlainTextResponse)
async def health(services: ServicesDep) -> PlainTextResponse:
    """Return `ok` when a broker answers; 503 otherwise."""
    await check_ready(services)
    return PlainTextResponse("ok")


@router.get("/admin/v2/brokers/version", summary="Version", response_class=PlainTextResponse)
async def broker_version() -> PlainTextResponse:
    """Return Heliograph's version."""
    return PlainTextResponse(heliograph_version())


@router.get("/admin/v2/brokers/leaderBroker", summary="The leader")
async def leader_broker(services: ServicesDep) -> dict[str, Any]:
    """Return the broker that assigns bundles; 404 while there is none."""
    for broker in await services.admin.brokers.list():
        if broker["is_leader"]:
            return {"brokerId": broker["broker_id"], "serviceUrl": broker["service_url"]}
    raise NotFoundError("no broker leads now", field="broker")


@router.get("/admin/v2/broker-stats/load-report", summary="Load of the brokers")
async def load_report(services: ServicesDep) -> list[dict[str, Any]]:
    """Return of each broker its shares of processor and memory, its rates per second, and its busiest bundles."""
    return [dict(report) for report in await services.admin.brokers.loads()]


@router.get("/admin/v2/brokers/{cluster}", summary="List a cluster's brokers")
async def cluster_brokers(services: ServicesDep, cluster: str) -> list[str]:
    """Return `host:port` of each live broker."""
    _check_cluster(services, cluster)
    return await brokers(services)


@router.get("/admin/v2/bookies/all", summary="List bookies")
async def bookies(services: ServicesDep) -> dict[str, Any]:
    """Return every live bookie. Beyond Pulsar: its address, whether it is writable, and its free bytes."""
    return {
        "bookies": [
            {
                "bookieId": item.bookie_id,
                "address": item.address,
                "rack": item.rack,
                "writable": item.writable,
                "freeBytes": item.free_bytes,
                "totalBytes": item.total_bytes,
            }
            for item in await services.cluster.bookies()
        ]
    }


@router.get("/admin/v2/bookies/racks-info", summary="Racks of bookies")
async def racks(services: ServicesDep) -> dict[str, Any]:
    """Return the rack of each bookie, in the one group `default`."""
    found = await services.cluster.bookies()
    return {"default": {item.address: {"rack": item.rack, "hostname": item.bookie_id} for item in found}}


@router.get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", summary="Look up a topic's owner")
async def lookup(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """Return the address of the topic's owner, in the shape that stock clients with an `http://` URL expect."""
    owner = await services.admin.lookup(str(topic))
    url, tls = str(owner["service_url"]), str(owner.get("service_url_tls", ""))
    answer = {"brokerUrl": url, "nativeUrl": url, "brokerUrlTls": tls, "brokerUrlSsl": tls}
    return JSONResponse({**answer, **dict.fromkeys(("httpUrl", "httpUrlTls"), "")})


async def check_ready(services: Services) -> None:
    """Return once a broker answers.

    Raises:
        ServiceNotReadyError: none does within ``READY_SECONDS``.
    """
    try:
        async with asyncio.timeout(READY_SECONDS):
            await services.admin.list_topics("public/default")
    except (TimeoutError, HeliographError) as error:
        raise ServiceNotReadyError(f"no broker answers: {error or f'{READY_SECONDS} s'}") from error


def _check_cluster(services: Services, name: str) -> None:
    if decoded(name) != services.config.cluster_name:
        raise NotFoundError(f"no cluster {decoded(name)}: it is {services.config.cluster_name}", field="cluster")


def _authority(service_url: str) -> str:
    return service_url.partition("://")[2] or service_url

"""Pulsar's administrative REST interface for what there is one of, or what cannot be changed: the cluster, its
tenants and namespaces, brokers and bookies; and the lookup of a topic's owner over HTTP."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, PlainTextResponse

from gateway.schemas import ErrorBody
from gateway.services import Services, ServicesDep
from gateway.topics import TopicInUrl, topic_names_in
from gateway.url_segments import decoded
from heliograph.errors import HeliographError, NamespaceNotFoundError, NotFoundError, ServiceNotReadyError

READY_SECONDS = 5.0  # a broker that answers no sooner is not ready
DISTRIBUTION = "heliograph-ray"

router = APIRouter(tags=["cluster"], responses={404: {"model": ErrorBody, "description": "No such thing"}})


@router.get("/admin/v2/clusters", summary="List clusters")
async def clusters(services: ServicesDep) -> list[str]:
    """The one cluster."""
    return [services.config.cluster_name]


@router.get("/admin/v2/clusters/{cluster}", summary="A cluster")
async def cluster(services: ServicesDep, cluster: str) -> dict[str, Any]:
    """Where the cluster's services listen."""
    _check_cluster(services, cluster)
    brokers = await services.cluster.brokers()
    return {"serviceUrl": "", "brokerServiceUrl": ",".join(broker.service_url for broker in brokers)}


@router.get("/admin/v2/tenants", summary="List tenants")
async def tenants(services: ServicesDep) -> list[str]:
    """Tenants that have a namespace."""
    return sorted({name.partition("/")[0] for name in await services.cluster.namespaces()})


@router.get("/admin/v2/tenants/{tenant}", summary="A tenant")
async def tenant_of(services: ServicesDep, tenant: str) -> dict[str, Any]:
    """Its roles and clusters."""
    if decoded(tenant) not in await tenants(services):
        raise NotFoundError(f"no tenant {decoded(tenant)}", field="tenant")
    return {"adminRoles": [], "allowedClusters": [services.config.cluster_name]}


@router.get("/admin/v2/namespaces/{tenant}", summary="List namespaces")
async def namespaces(services: ServicesDep, tenant: str) -> list[str]:
    """`tenant/namespace` of each."""
    found = [name for name in await services.cluster.namespaces() if name.partition("/")[0] == decoded(tenant)]
    if not found:
        raise NotFoundError(f"no tenant {decoded(tenant)}", field="tenant")
    return found


@router.get("/admin/v2/namespaces/{tenant}/{namespace}", summary="A namespace")
async def namespace_of(services: ServicesDep, tenant: str, namespace: str) -> dict[str, Any]:
    """Its policies, as far as they can be told."""
    await _check_namespace(services, f"{decoded(tenant)}/{decoded(namespace)}")
    return {"auth_policies": {}, "replication_clusters": [services.config.cluster_name], "deleted": False}


@router.get("/admin/v2/namespaces/{tenant}/{namespace}/topics", summary="List a namespace's topics")
async def namespace_topics(
    services: ServicesDep,
    tenant: str,
    namespace: str,
    mode: Annotated[str, Query(pattern="^(PERSISTENT|NON_PERSISTENT|ALL)$")] = "PERSISTENT",
) -> list[str]:
    """Full names of the topics, partitions one by one; stock clients ask this for regex subscriptions."""
    if mode == "NON_PERSISTENT":
        return []
    return await topic_names_in(services.admin, tenant, namespace)


@router.get("/admin/v2/brokers", summary="List brokers")
async def brokers(services: ServicesDep) -> list[str]:
    """`host:port` of each broker that serves now."""
    return [_authority(broker.service_url) for broker in await services.cluster.brokers()]


@router.get("/admin/v2/brokers/health", summary="Health", response_class=PlainTextResponse)
@router.get("/admin/v2/brokers/ready", summary="Readiness", response_class=PlainTextResponse)
async def health(services: ServicesDep) -> PlainTextResponse:
    """`ok` when a broker answers; 503 otherwise."""
    await check_ready(services)
    return PlainTextResponse("ok")


@router.get("/admin/v2/brokers/version", summary="Version", response_class=PlainTextResponse)
async def broker_version() -> PlainTextResponse:
    """Heliograph's version."""
    return PlainTextResponse(heliograph_version())


@router.get("/admin/v2/brokers/{cluster}", summary="List a cluster's brokers")
async def cluster_brokers(services: ServicesDep, cluster: str) -> list[str]:
    """`host:port` of each broker that serves now."""
    _check_cluster(services, cluster)
    return await brokers(services)


@router.get("/admin/v2/bookies/all", summary="List bookies")
async def bookies(services: ServicesDep) -> dict[str, Any]:
    """Every bookie that serves now. Beyond Pulsar: its address, whether it is writable, and its free bytes."""
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
    """The rack of each bookie, in the one group `default`."""
    found = await services.cluster.bookies()
    return {"default": {item.address: {"rack": item.rack, "hostname": item.bookie_id} for item in found}}


@router.get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", summary="Look up a topic's owner")
async def lookup(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """The address of the broker that owns the topic, in the shape that stock clients with an `http://` URL expect."""
    url = str((await services.admin.lookup(str(topic)))["service_url"])
    answer = {"brokerUrl": url, "nativeUrl": url}
    return JSONResponse({**answer, **dict.fromkeys(("brokerUrlTls", "brokerUrlSsl", "httpUrl", "httpUrlTls"), "")})


async def check_ready(services: Services) -> None:
    """Return when some broker answers.

    Raises:
        ServiceNotReadyError: none does.
    """
    try:
        async with asyncio.timeout(READY_SECONDS):
            await services.admin.list_topics("public/default")
    except (TimeoutError, HeliographError) as error:
        raise ServiceNotReadyError(f"no broker answers: {error or f'{READY_SECONDS} s'}") from error


def heliograph_version() -> str:
    """The installed version; ``unknown`` when run from a tree that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def _check_cluster(services: Services, name: str) -> None:
    if decoded(name) != services.config.cluster_name:
        raise NotFoundError(f"no cluster {decoded(name)}: it is {services.config.cluster_name}", field="cluster")


async def _check_namespace(services: Services, name: str) -> None:
    if name not in await services.cluster.namespaces():
        raise NamespaceNotFoundError(f"no namespace {name}", field="namespace")


def _authority(service_url: str) -> str:
    return service_url.partition("://")[2] or service_url

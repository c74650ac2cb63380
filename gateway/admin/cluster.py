"""Pulsar's administrative REST interface for the cluster and its bookies; and the lookup of a topic's owner."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

from heliograph.base.errors import (
    ConflictError,
    HeliographError,
    NamespaceNotFoundError,
    NotFoundError,
    NotPermittedError,
    ServiceNotReadyError,
    UnsupportedError,
)
from heliograph.gateway.admin.routes import NO_CONTENT, json_object, web_address, web_scheme
from heliograph.gateway.errors import MethodNotAllowedError, PreconditionError
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody
from heliograph.gateway.shapes.topics import TopicInUrl
from heliograph.gateway.shapes.url_segments import decoded
from heliograph.operations.table import Answer

READY_TOPIC = "persistent://public/default/ready"  # need not exist
READY_SECONDS = 5.0  # a broker that takes longer to answer is not ready
CLUSTER = "/admin/v2/clusters/{cluster}"
LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"

router = APIRouter(tags=["cluster"], responses={404: {"model": ErrorBody, "description": "No such thing"}})


# -- clusters


@router.get("/admin/v2/clusters", summary="List clusters")
async def clusters(services: ServicesDep) -> list[str]:
    """Return the name of the one cluster."""
    return [services.config.cluster_name]


@router.get(CLUSTER, summary="A cluster")
async def cluster(request: Request, services: ServicesDep, cluster: str) -> dict[str, Any]:
    """Return the addresses of the cluster's services: this gateway's, and those of the brokers."""
    check_cluster(services, cluster)
    brokers = await services.cluster.brokers()
    tls = [broker.service_url_tls for broker in brokers if broker.service_url_tls]
    found = {
        "brokerServiceUrl": _joined([broker.service_url for broker in brokers if broker.service_url]),
        "brokerServiceUrlTls": _joined(tls),
    }
    name = "serviceUrlTls" if web_scheme(request) == "https" else "serviceUrl"
    return {"serviceUrl": "", "serviceUrlTls": "", **found, name: f"{web_scheme(request)}://{web_address(request)}"}


@router.put(CLUSTER, **NO_CONTENT, summary="Refused: create a cluster")
async def create_cluster(services: ServicesDep, cluster: str) -> None:
    """Refuse: there is one cluster, and it exists."""
    if decoded(cluster) == services.config.cluster_name:
        raise ConflictError(f"cluster {decoded(cluster)} exists", field="cluster")
    raise UnsupportedError(
        "other clusters cannot be registered: replication between clusters is not offered", field="cluster"
    )


@router.post(CLUSTER, **NO_CONTENT, summary="Refused: change a cluster")
async def update_cluster(services: ServicesDep, cluster: str) -> None:
    """Refuse: the addresses of the one cluster are those of the services that run."""
    check_cluster(services, cluster)
    raise MethodNotAllowedError(
        "the cluster's addresses are those that its brokers and gateways registered: set them in their configuration",
        field="cluster",
    )


@router.delete(CLUSTER, **NO_CONTENT, summary="Refused: delete a cluster")
async def delete_cluster(services: ServicesDep, cluster: str) -> None:
    """Refuse: the cluster that serves the request stays."""
    check_cluster(services, cluster)
    raise MethodNotAllowedError("the cluster cannot delete itself: `helio down` stops it", field="cluster")


@router.get(f"{CLUSTER}/peers", summary="Peer clusters")
async def peers(services: ServicesDep, cluster: str) -> list[str]:
    """Return an empty list: the cluster has no peers."""
    check_cluster(services, cluster)
    return []


@router.get(f"{CLUSTER}/failureDomains", summary="Failure domains")
async def failure_domains(services: ServicesDep, cluster: str) -> dict[str, Any]:
    """Return an empty object: brokers have no failure domains."""
    check_cluster(services, cluster)
    return {}


@router.get(f"{CLUSTER}/failureDomains/{{domain}}", summary="A failure domain")
async def failure_domain(services: ServicesDep, cluster: str, domain: str) -> None:
    """Answer 404: there is none."""
    check_cluster(services, cluster)
    raise NotFoundError(f"there is no failure domain {decoded(domain)}", field="domain")


@router.get(f"{CLUSTER}/migrate", summary="Refused: whether a cluster is being migrated")
@router.post(f"{CLUSTER}/migrate", include_in_schema=False)
@router.post(f"{CLUSTER}/peers", summary="Refused: set peer clusters")
@router.post(f"{CLUSTER}/failureDomains/{{domain}}", summary="Refused: set a failure domain")
@router.delete(f"{CLUSTER}/failureDomains/{{domain}}", summary="Refused: delete a failure domain")
async def not_offered(request: Request, services: ServicesDep, cluster: str) -> None:
    """Refuse features of several clusters."""
    check_cluster(services, cluster)
    path = request.url.path
    if "failureDomains" in path:
        raise UnsupportedError(
            "failure domains of brokers are not offered: bundles go to the least loaded broker", field="domain"
        )
    what = "migration to" if path.endswith("migrate") else "replication with"
    raise UnsupportedError(f"{what} other clusters is not offered", field="cluster")


# -- bookies


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
async def racks(services: ServicesDep) -> dict[str, dict[str, dict[str, str]]]:
    """Return the rack of each bookie by group and address; a bookie that was given none is in the group `default`."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in await services.admin.bookies.racks():
        found.setdefault(row["group"], {})[row["address"] or row["bookie_id"]] = _rack_shown(row)
    return found


@router.get("/admin/v2/bookies/racks-info/{bookie}", summary="The rack of a bookie")
async def rack(services: ServicesDep, bookie: str) -> dict[str, str]:
    """Return `{"rack", "hostname"}` of the bookie with that address or id."""
    wanted = decoded(bookie)
    for row in await services.admin.bookies.racks():
        if wanted in (row["address"], row["bookie_id"]):
            return _rack_shown(row)
    raise NotFoundError(f"there is no live bookie {wanted}", field="bookie")


@router.post("/admin/v2/bookies/racks-info/{bookie}", **NO_CONTENT, summary="Set the rack of a bookie")
async def set_rack(
    request: Request,
    services: ServicesDep,
    bookie: str,
    group: Annotated[str | None, Query(description="A note; `default` is the usual one")] = None,
) -> None:
    """Set `{"rack", "hostname"}`, for segments and copies that are placed from now on. It holds instead of the rack
    that the bookie registers. 412 without a group or a rack."""
    body = await json_object(request)
    given, hostname = body.get("rack"), body.get("hostname") or ""
    if not group or not isinstance(given, str) or not given.strip("/ ") or not isinstance(hostname, str):
        raise PreconditionError("a group and a rack are needed, which are texts", field="rack" if group else "group")
    await services.admin.bookies.set_rack(decoded(bookie), given, group, hostname)


@router.delete("/admin/v2/bookies/racks-info/{bookie}", **NO_CONTENT, summary="Remove the rack of a bookie")
async def remove_rack(services: ServicesDep, bookie: str) -> None:
    """Remove the rack that was set, so that the registered one holds; 404 where none was set."""
    await services.admin.bookies.remove_rack(decoded(bookie))


def _rack_shown(row: Answer) -> dict[str, str]:
    return {"rack": row["rack"], "hostname": row["hostname"] or row["bookie_id"]}


# -- lookup


@router.get(LOOKUP, summary="Look up a topic's owner")
async def lookup(
    request: Request,
    services: ServicesDep,
    topic: TopicInUrl,
    listener: Annotated[str, Query(alias="listenerName", description="An advertised listener of the brokers")] = "",
    listener_header: Annotated[str, Header(alias="X-Pulsar-ListenerName", include_in_schema=False)] = "",
) -> JSONResponse:
    """Return the address of the topic's owner, in the shape that stock clients with an `http://` URL expect.

    With `listenerName`, or else the header `X-Pulsar-ListenerName`, it is the address of that advertised listener; 501
    where the owner has none of that name.
    """
    owner = await services.admin.lookup(str(topic), listener or listener_header)
    url, tls = str(owner["service_url"]), str(owner.get("service_url_tls", ""))
    answer = {"brokerUrl": url, "nativeUrl": url, "brokerUrlTls": tls, "brokerUrlSsl": tls}
    web = dict.fromkeys(("httpUrl", "httpUrlTls"), "")
    web["httpUrlTls" if web_scheme(request) == "https" else "httpUrl"] = (
        f"{web_scheme(request)}://{web_address(request)}"
    )
    return JSONResponse({**answer, **web})


@router.get(f"{LOOKUP}/bundle", summary="A topic's bundle", response_class=PlainTextResponse)
async def bundle_of(services: ServicesDep, topic: TopicInUrl) -> PlainTextResponse:
    """Return the hash range of the topic's bundle, such as `0x40000000_0x60000000`."""
    return PlainTextResponse(await services.admin.bundle_of(str(topic)))


async def check_ready(services: Services) -> None:
    """Return once a broker answers.

    Raises:
        ServiceNotReadyError: none does within ``READY_SECONDS``.
    """
    try:
        async with asyncio.timeout(READY_SECONDS):
            await services.admin.bundle_of(READY_TOPIC)  # costs the same however many topics there are
    except (NotPermittedError, NamespaceNotFoundError):
        return  # a broker answers: it asks for the rights of a caller, who is none here, or the namespace was deleted
    except (TimeoutError, HeliographError) as error:
        raise ServiceNotReadyError(f"no broker answers: {str(error) or f'none in {READY_SECONDS:g} s'}") from error


def check_cluster(services: Services, name: str) -> None:
    """Raise NotFoundError unless a URL segment names the one cluster."""
    if decoded(name) != services.config.cluster_name:
        raise NotFoundError(f"no cluster {decoded(name)}: it is {services.config.cluster_name}", field="cluster")


def _joined(urls: list[str]) -> str:
    """Return addresses as one that names all hosts: ``pulsar://host:port,host:port``."""
    first, *others = urls or [""]
    return ",".join([first, *(url.partition("://")[2] for url in others)])

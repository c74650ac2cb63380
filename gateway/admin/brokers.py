"""Pulsar's administrative REST interface for brokers and their statistics.

Brokers have no web service of their own: tools administer them through a gateway, whose address stands for all of them.
Where a path names a broker, its id and its service address are accepted too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from heliograph.base.errors import BadRequestError, HeliographError, NotFoundError, UnsupportedError
from heliograph.base.version import heliograph_version
from heliograph.gateway.admin.cluster import check_cluster, check_ready
from heliograph.gateway.admin.routes import NO_CONTENT, web_address, web_scheme
from heliograph.gateway.errors import MethodNotAllowedError, PreconditionError
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody
from heliograph.gateway.shapes.url_segments import decoded
from heliograph.operations.table import Answer
from heliograph.protocol.topic_name import TopicName

BROKERS = "/admin/v2/brokers"
STATS = "/admin/v2/broker-stats"
STATS_TOPICS_MAX = 1_000  # topics of one answer
STATS_AT_ONCE_MAX = 16

router = APIRouter(tags=["brokers"], responses={404: {"model": ErrorBody, "description": "No such thing"}})


@router.get(BROKERS, summary="List brokers")
async def brokers(request: Request, services: ServicesDep) -> list[str]:
    """Return `host:port` of the web service of the live brokers, which is this gateway; empty when none lives."""
    return [web_address(request)] if await services.cluster.brokers() else []


@router.get(f"{BROKERS}/health", summary="Health", response_class=PlainTextResponse)
@router.get(f"{BROKERS}/ready", summary="Readiness", response_class=PlainTextResponse)
async def health(services: ServicesDep) -> PlainTextResponse:
    """Return `ok` when a broker answers; 503 otherwise."""
    await check_ready(services)
    return PlainTextResponse("ok")


@router.get(f"{BROKERS}/version", summary="Version", response_class=PlainTextResponse)
async def broker_version() -> PlainTextResponse:
    """Return Heliograph's version."""
    return PlainTextResponse(heliograph_version())


@router.get(f"{BROKERS}/leaderBroker", summary="The leader")
async def leader_broker(request: Request, services: ServicesDep) -> dict[str, Any]:
    """Return the broker that assigns bundles; 404 while there is none.

    `brokerId` and `serviceUrl` are those of the web service, as in the list of brokers. Beyond Pulsar: `name` and
    `brokerServiceUrl` are the leader's own.
    """
    for broker in await services.admin.brokers.list():
        if broker["is_leader"]:
            web = {"brokerId": web_address(request), "serviceUrl": f"{web_scheme(request)}://{web_address(request)}"}
            address = broker["service_url"] or broker["service_url_tls"]
            return {**web, "name": broker["broker_id"], "brokerServiceUrl": address}
    raise NotFoundError("no broker leads now", field="broker")


@router.get(f"{BROKERS}/followed/{{trace_id}}", summary="Messages of a trace")
async def followed(services: ServicesDep, trace_id: str) -> list[Answer]:
    """Return the entries of a trace that the brokers remember, with their topics and steps."""
    return list(await services.admin.brokers.followed(trace_id))


@router.get(f"{BROKERS}/configuration", summary="Settings that can change while brokers run")
async def dynamic_names(services: ServicesDep) -> list[str]:
    """Return their names, those of Pulsar and Heliograph's own."""
    found = await services.admin.settings.live()
    return sorted({str(row[key]) for row in found for key in ("name", "pulsar_name") if row[key] is not None})


@router.get(f"{BROKERS}/configuration/values", summary="Settings that were changed while brokers run")
async def dynamic_values(services: ServicesDep) -> dict[str, str]:
    """Return the values that were set, by each name of a setting in the unit of that name."""
    found: dict[str, str] = {}
    for row in await services.admin.settings.live():
        if row["changed_to"] is not None:
            found[row["name"]] = row["changed_to"]
        if row["pulsar_value"] is not None:
            found[row["pulsar_name"]] = row["pulsar_value"]
    return dict(sorted(found.items()))


@router.get(f"{BROKERS}/configuration/runtime", summary="Settings that a broker runs with")
async def runtime_configuration(services: ServicesDep) -> dict[str, str]:
    """Return the settings of one of the brokers as text, without its secrets, and the `clusterName`."""
    for broker in await services.admin.brokers.list():
        found = await services.admin.brokers.configuration(broker["broker_id"])
        return {"clusterName": services.config.cluster_name, **found}
    raise NotFoundError("no broker lives now", field="broker")


@router.post(f"{BROKERS}/configuration/{{name}}/{{value:path}}", **NO_CONTENT, summary="Change a setting")
async def change_setting(services: ServicesDep, name: str, value: str) -> None:
    """Change a setting of all brokers, which apply it within seconds and keep it over restarts; 412 for a name that
    no such setting has, and for a value that is not acceptable."""
    with _as_precondition():
        await services.admin.settings.set(decoded(name), decoded(value))


@router.delete(f"{BROKERS}/configuration/{{name}}", **NO_CONTENT, summary="Reset a setting")
async def reset_setting(services: ServicesDep, name: str) -> None:
    """Give each broker the value of its own configuration back; 412 for a name that no such setting has."""
    with _as_precondition():
        await services.admin.settings.unset(decoded(name))


@router.get(f"{BROKERS}/internal-configuration", summary="Where the cluster keeps its metadata")
async def internal_configuration(services: ServicesDep) -> dict[str, str]:
    """Return Pulsar's fields; those that name ZooKeeper servers are empty, whatever the metadata store is.

    Clients and tools need no connection to the store, and its address may hold a password.
    """
    names = ("zookeeperServers", "configurationStoreServers", "metadataStoreUrl", "configurationMetadataStoreUrl")
    more = ("bookkeeperMetadataServiceUri", "stateStorageServiceUrl")
    return {**dict.fromkeys((*names, *more), ""), "ledgersRootPath": "/ledgers"}


@router.get(f"{BROKERS}/backlog-quota-check", **NO_CONTENT, summary="Check backlog quotas")
@router.get(f"{BROKERS}/backlogQuotaCheck", **NO_CONTENT, include_in_schema=False)
async def check_quotas(services: ServicesDep) -> None:
    """Make every broker check the backlog quotas of its loaded topics now."""
    await services.admin.brokers.check_quotas()


@router.post(f"{BROKERS}/shutdown", **NO_CONTENT, summary="Refused: stop a broker")
async def shutdown() -> None:
    """Refuse: this address stands for all brokers, and each is stopped by the program that started it."""
    raise MethodNotAllowedError(
        "a gateway stops no broker: `helio brokers drain` empties one, and whatever started it stops it", field="broker"
    )


@router.get(f"{BROKERS}/{{cluster}}", summary="List a cluster's brokers")
async def cluster_brokers(request: Request, services: ServicesDep, cluster: str) -> list[str]:
    """Return what the list of brokers has."""
    check_cluster(services, cluster)
    return await brokers(request, services)


@router.get(f"{BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", summary="Bundles of a broker")
async def owned_namespaces(
    request: Request, services: ServicesDep, cluster: str, broker: str
) -> dict[str, dict[str, Any]]:
    """Return each bundle that the broker owns, as `tenant/namespace/range`; for a gateway's address those of all."""
    check_cluster(services, cluster)
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    found: dict[str, dict[str, Any]] = {}
    for broker_id in await _named(request, services, decoded(broker)):
        for namespace, bundles in (await services.admin.brokers.owned(broker_id)).items():
            found |= {f"{namespace}/{bundle}": dict(status) for bundle in bundles}
    return dict(sorted(found.items()))


# -- statistics


@router.get(f"{STATS}/load-report", summary="Load of the brokers")
async def load_report(request: Request, services: ServicesDep) -> dict[str, Any]:
    """Return Pulsar's load report for all brokers together: rates are sums, shares those of the busiest broker.

    Beyond Pulsar: `brokers` has the report of each broker.
    """
    reports = [dict(report) for report in await services.admin.brokers.loads()]
    web, is_tls = f"{web_scheme(request)}://{web_address(request)}", web_scheme(request) == "https"
    owned: list[str] = []
    for report in reports:
        for namespace, names in (await services.admin.brokers.owned(report["broker_id"])).items():
            owned += [f"{namespace}/{name}" for name in names]
    live = await services.cluster.brokers()

    def total(name: str) -> Any:
        return sum(report.get(name, 0) for report in reports)

    def usage(name: str) -> dict[str, float]:
        return {"usage": 100.0 * max((report.get(name, 0.0) for report in reports), default=0.0), "limit": 100.0}

    return {
        "loadReportType": "LocalBrokerData",
        "webServiceUrl": None if is_tls else web,
        "webServiceUrlTls": web if is_tls else None,
        "pulsarServiceUrl": (live[0].service_url or None) if live else None,
        "pulsarServiceUrlTls": (live[0].service_url_tls or None) if live else None,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "cpu": usage("cpu_share"),
        "memory": usage("memory_share"),
        **{name: {"usage": 0.0, "limit": 0.0} for name in ("directMemory", "bandwidthIn", "bandwidthOut")},
        "msgRateIn": total("messages_in_per_second"),
        "msgRateOut": total("messages_out_per_second"),
        "msgThroughputIn": total("bytes_in_per_second"),
        "msgThroughputOut": total("bytes_out_per_second"),
        "lastUpdate": max((report.get("reported_ms", 0) for report in reports), default=0),
        "lastStats": {},
        "numTopics": total("topics"),
        "numBundles": len(owned),
        "bundles": sorted(owned),
        "lastBundleGains": [],
        "lastBundleLosses": [],
        "brokerVersionString": heliograph_version(),
        "protocols": {},
        "advertisedListeners": {},
        "brokers": reports,
    }


@router.get(f"{STATS}/metrics", summary="Figures of the brokers")
async def metrics(services: ServicesDep) -> list[dict[str, Any]]:
    """Return the numbers of each broker's load report, as `{"metrics": {...}, "dimensions": {"broker": id}}`."""
    return [
        {
            "metrics": {f"brk_{name}": value for name, value in report.items() if isinstance(value, int | float)},
            "dimensions": {"broker": report["broker_id"], "cluster": services.config.cluster_name},
        }
        for report in await services.admin.brokers.loads()
    ]


@router.get(f"{STATS}/topics", summary="Statistics of all topics in memory")
async def topics(services: ServicesDep) -> dict[str, Any]:
    """Return `{namespace: {bundle: {domain: {topic: statistics}}}}` of topics in memory, the first thousand by name."""
    loaded: dict[str, str] = {}
    for broker in await services.admin.brokers.list():
        loaded |= await services.admin.brokers.topics(broker["broker_id"])
    gate = asyncio.Semaphore(STATS_AT_ONCE_MAX)

    async def stats(name: str) -> Answer | None:
        async with gate:
            try:
                return dict(await services.admin.topic_stats(name))
            except HeliographError:
                return None  # it was moved or deleted meanwhile

    names = sorted(loaded)[:STATS_TOPICS_MAX]
    shown: dict[str, Any] = {}
    for name, found in zip(names, await asyncio.gather(*map(stats, names)), strict=True):
        if found is not None:
            topic = TopicName.parse(name)
            bundle = shown.setdefault(topic.namespace, {}).setdefault(loaded[name], {})
            bundle.setdefault(topic.domain, {})[name] = found
    return shown


@router.get(f"{STATS}/allocator-stats/{{name}}", response_class=Response, summary="Refused: Netty's allocators")
@router.get(f"{STATS}/mbeans", response_class=Response, summary="Refused: JMX beans")
@router.get(f"{STATS}/bookieops", response_class=Response, summary="Refused: operations of the BookKeeper client")
async def of_the_jvm() -> Response:
    """Refuse: these are figures of a Java process."""
    raise UnsupportedError(
        "brokers are no Java processes, they have neither JMX beans nor Netty allocators: docs/operations/metrics.md "
        "lists their metrics",
        field="path",
    )


@contextlib.contextmanager
def _as_precondition() -> Iterator[None]:
    """Answer what a setting does not admit with Pulsar's status."""
    try:
        yield
    except BadRequestError as error:
        raise PreconditionError(str(error), field=error.field, limit=error.limit) from error


async def _named(request: Request, services: Services, wanted: str) -> list[str]:
    """Return the ids of the live brokers that a path names.

    Raises:
        NotFoundError: it names none.
    """
    live = await services.admin.brokers.list()
    if wanted == web_address(request):
        return [broker["broker_id"] for broker in live]
    for broker in live:
        urls = filter(None, (broker["service_url"], broker.get("service_url_tls")))
        if wanted in (broker["broker_id"], *(url.partition("://")[2] for url in urls)):
            return [broker["broker_id"]]
    raise NotFoundError(f"there is no broker {wanted}", field="broker")

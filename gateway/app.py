"""The FastAPI app, built from the clients it is given; it has no global state, so a process may hold several apps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from heliograph.base.errors import Advice, BadRequestError, HeliographError
from heliograph.base.version import heliograph_version
from heliograph.client.aio.client import AsyncClient
from heliograph.gateway import calls
from heliograph.gateway.admin import backlogs as admin_backlogs
from heliograph.gateway.admin import brokers as admin_brokers
from heliograph.gateway.admin import cluster as admin_cluster
from heliograph.gateway.admin import namespaces as admin_namespaces
from heliograph.gateway.admin import not_offered as admin_not_offered
from heliograph.gateway.admin import permissions as admin_permissions
from heliograph.gateway.admin import policies as admin_policies
from heliograph.gateway.admin import schemas as admin_schemas
from heliograph.gateway.admin import subscriptions as admin_subscriptions
from heliograph.gateway.admin import topics as admin_topics
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.console import (
    assets,
    changes,
    cluster_map,
    console,
    docs_page,
    history,
    processors,
    task_queues,
    topic_page,
    topics,
)
from heliograph.gateway.errors import body_of, headers_of, row_of, validation_body
from heliograph.gateway.http.door import Door
from heliograph.gateway.http.guard import RequestGuard
from heliograph.gateway.http.limiter import Limiter
from heliograph.gateway.http.metrics import RequestCounter
from heliograph.gateway.http.tracing import RequestTracing
from heliograph.gateway.openapi import DocumentedApp
from heliograph.gateway.ports import AdminPort, ClusterView, PartsPort
from heliograph.gateway.rest import browse, consume, events, produce, ray_events, resend, tasks
from heliograph.gateway.services import Services
from heliograph.gateway.sessions.agents import RoleAgents
from heliograph.gateway.shapes.url_segments import SegmentPaths
from heliograph.gateway.websocket import consumer as websocket_consumer
from heliograph.gateway.websocket import producer as websocket_producer
from heliograph.gateway.websocket import reader as websocket_reader
from heliograph.gateway.websocket.upgrade import refuse
from heliograph.metadata.connect import connect_renewing_store
from heliograph.metadata.recipes.revoked_tokens import following_revocations
from heliograph.metrics.cluster import GATEWAY_METRICS
from heliograph.metrics.history import keep_history
from heliograph.tracing import tracer as tracing

log = logging.getLogger(__name__)
_DESCRIPTION = """
Durable, ordered, replicated messaging over HTTP and WebSocket, with Apache Pulsar's requests and answers.

* **produce** and **consume** use plain HTTP requests; status 200 means that the effect is durable. `/events` delivers a
  topic to the `EventSource` of a page.
* **topics** and **cluster** implement Pulsar's `/admin/v2`.
* WebSocket sessions, which this page cannot list: `/ws/v2/producer/persistent/{tenant}/{namespace}/{topic}`,
  `/ws/v2/consumer/persistent/{tenant}/{namespace}/{topic}/{subscription}`,
  `/ws/v2/reader/persistent/{tenant}/{namespace}/{topic}` and `/ws/v3/consumer/{subscription}?topics=a,b`,
  with Pulsar's JSON frames. Beyond Pulsar a consumer may send `{"type": "cumulativeAck", "messageId": "..."}` and
  `{"type": "seek", "messageId": "earliest"}` (or `latest`, an id, or `"timestamp": ms`); any command with a `context`
  is answered once it is done.

Every error has the body `{"reason", "advice", "field"?, "limit"?}`; `advice` is `retry`, `refresh` or `stop`.
"""
_ROUTERS = (
    assets.router,
    console.router,
    cluster_map.router,
    changes.router,
    docs_page.router,
    history.router,
    produce.router,
    consume.router,
    events.router,
    browse.router,
    resend.router,
    topics.router,
    tasks.router,
    ray_events.router,
    topic_page.router,
    task_queues.router,
    processors.router,
    admin_topics.router,
    admin_schemas.router,
    admin_subscriptions.router,
    admin_backlogs.router,
    admin_cluster.router,
    admin_brokers.router,
    admin_namespaces.router,
    admin_permissions.router,
    calls.router,
    admin_not_offered.router,
    admin_policies.router,  # last: its paths end in a policy's name and would match others
    websocket_producer.router,
    websocket_consumer.router,
    websocket_reader.router,
)


def create_app(
    client: AsyncClient,
    admin: AdminPort,
    config: GatewayConfig,
    cluster: ClusterView,
    parts: PartsPort,
    factory: RoleAgents | None = None,
) -> FastAPI:
    """Return the gateway as an ASGI app.

    Args:
        client: publishes and consumes messages; the caller closes it.
        admin: runs administrative calls; the caller owns it.
        cluster: lists brokers and bookies.
        parts: asks the parts of the cluster.
        factory: makes the agents that act for callers; needed if callers are authenticated.

    Raises:
        InvalidConfigError: the configuration contradicts itself.
    """
    assert factory is not None or not config.auth.is_enabled, "callers that are known need clients of their own"
    services = Services(client, admin, cluster, config, parts, factory)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        services.audit.start()
        tracer = await asyncio.to_thread(tracing.start, config.tracing)
        async with contextlib.AsyncExitStack() as stack:
            if config.auth.is_enabled and config.metadata_url:
                connect = partial(connect_renewing_store, config.metadata_url)
                await stack.enter_async_context(following_revocations(connect, services.authenticator.revoke))
            keeping = keep_history(services.history, GATEWAY_METRICS, services.metrics.sums)
            tasks = [asyncio.create_task(services.sweep()), asyncio.create_task(keeping)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await services.close()
                await asyncio.to_thread(tracing.stop, tracer)

    app = DocumentedApp(
        title="Heliograph",
        version=heliograph_version(),
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # the framework's own pages load scripts of other hosts: docs_page serves one that does not
        redoc_url=None,
    )
    app.state.services = services
    for router in (*_ROUTERS, _websocket_fallback()):
        app.router.routes.extend(router.routes)  # an included router analyses its routes again: 0.3 s
    _answer_errors_as_json(app)
    # The last is the first that sees a request.
    app.add_middleware(RequestTracing)
    app.add_middleware(Limiter, budget=services.budget, rates=services.rates)
    app.add_middleware(Door, authenticator=services.authenticator)
    app.add_middleware(RequestGuard, config=config)
    if config.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(config.trusted_proxies))
    app.add_middleware(RequestCounter, metrics=services.metrics)
    app.add_middleware(SegmentPaths)
    return app


def _websocket_fallback() -> APIRouter:
    """Return the routes that refuse an upgrade at an unknown path, and plain HTTP below ``/ws``."""
    router = APIRouter()

    @router.websocket("/{path:path}")
    async def unknown(websocket: WebSocket, path: str) -> None:
        await refuse(websocket, BadRequestError(f"no WebSocket endpoint at /{path}", field="path"))

    @router.get("/ws/{path:path}", include_in_schema=False)
    async def not_an_upgrade(path: str) -> Response:
        body = {"reason": "this is a WebSocket endpoint: connect with ws://", "advice": Advice.STOP.value}
        return JSONResponse(body, status_code=426, headers={"Upgrade": "websocket", "Connection": "Upgrade"})

    return router


def _routing_reason(request: Request, error: HTTPException) -> str:
    """Return the reason for which no route answers the request."""
    path = request.url.path
    if error.status_code == 404:
        return f"no resource at {path}: /docs lists all paths"
    if error.status_code == 405:
        return f"{request.method} is not allowed at {path}: /docs lists the methods of each path"
    return str(error.detail)


def _answer_errors_as_json(app: FastAPI) -> None:
    @app.exception_handler(HeliographError)
    async def ours(request: Request, error: HeliographError) -> Response:
        row = row_of(error)
        if row.http == 500:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse(body_of(error), status_code=row.http, headers=headers_of(error))

    @app.exception_handler(RequestValidationError)
    async def validation(_: Request, error: RequestValidationError) -> Response:
        status, body = validation_body(error.errors())
        return JSONResponse(body, status_code=status)

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        body = {"reason": _routing_reason(request, error), "advice": Advice.STOP.value}
        return JSONResponse(body, status_code=error.status_code, headers=error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # the client is gone and reads no answer

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return JSONResponse(body_of(error), status_code=500)  # the server logs it

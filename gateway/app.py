"""The FastAPI app, made from given clients; nothing is global, so that a process may hold several."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from gateway import (
    admin_cluster,
    admin_namespaces,
    admin_policies,
    admin_schemas,
    admin_subscriptions,
    admin_topics,
    console,
    consume,
    produce,
    websocket_consumer,
    websocket_producer,
    websocket_reader,
)
from gateway.cluster_view import NoClusterView
from gateway.config import GatewayConfig
from gateway.errors import body_of, row_of, validation_body
from gateway.ports import Admin, Client, ClusterView
from gateway.request_log import RequestCounter
from gateway.services import Services
from gateway.url_segments import SegmentPaths
from gateway.websocket_upgrade import refuse
from heliograph.errors import Advice, BadRequestError, HeliographError
from heliograph.version import heliograph_version

_log = logging.getLogger(__name__)
_DESCRIPTION = """
Durable, ordered, replicated messaging over HTTP and WebSocket, in Apache Pulsar's shapes.

* **produce** and **consume** with plain HTTP requests; an answer of 200 means that the effect is durable.
* **topics** and **cluster** speak Pulsar's `/admin/v2`.
* WebSocket sessions, which this page cannot show: `/ws/v2/producer/persistent/{tenant}/{namespace}/{topic}`,
  `/ws/v2/consumer/persistent/{tenant}/{namespace}/{topic}/{subscription}`,
  `/ws/v2/reader/persistent/{tenant}/{namespace}/{topic}` and `/ws/v3/consumer/{subscription}?topics=a,b`,
  with Pulsar's JSON frames. Beyond Pulsar a consumer may send `{"type": "cumulativeAck", "messageId": "..."}` and
  `{"type": "seek", "messageId": "earliest"}` (or `latest`, an id, or `"timestamp": ms`); any command with a `context`
  is answered once it is done.

Every error has the body `{"reason", "advice", "field"?, "limit"?}`; `advice` is `retry`, `refresh` or `stop`.
"""
_ROUTERS = (
    console.router,
    produce.router,
    consume.router,
    admin_topics.router,
    admin_schemas.router,
    admin_subscriptions.router,
    admin_cluster.router,
    admin_namespaces.router,
    admin_policies.router,  # after all others: its paths end in the name of any policy
    websocket_producer.router,
    websocket_consumer.router,
    websocket_reader.router,
)


def create_app(client: Client, admin: Admin, config: GatewayConfig, cluster: ClusterView | None = None) -> FastAPI:
    """The gateway as an ASGI app.

    Args:
        client: carries messages; stays open, it belongs to the caller.
        admin: answers administrative calls; belongs to the caller.
        cluster: tells who serves; None: nobody is listed.

    Raises:
        InvalidConfigError: the configuration contradicts itself.
    """
    services = Services(client, admin, cluster or NoClusterView(), config.validated())

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(services.sweep())
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)
            await services.close()

    app = FastAPI(
        title="Heliograph",
        version=heliograph_version(),
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.services = services
    for router in (*_ROUTERS, _websocket_fallback()):
        app.include_router(router)
    _answer_errors_as_json(app)
    app.add_middleware(RequestCounter, metrics=services.metrics)
    app.add_middleware(SegmentPaths)
    return app


def _websocket_fallback() -> APIRouter:
    """What is left below ``/ws``: an upgrade to no known endpoint, and plain HTTP to any of them."""
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
    """Why the framework found nobody to answer, in our words."""
    path = request.url.path
    if error.status_code == 404:
        return f"there is nothing at {path}: /docs lists what there is"
    if error.status_code == 405:
        return f"{request.method} is not for {path}: /docs lists what is"
    return str(error.detail)


def _answer_errors_as_json(app: FastAPI) -> None:
    @app.exception_handler(HeliographError)
    async def ours(request: Request, error: HeliographError) -> Response:
        row = row_of(error)
        if row.http == 500:
            _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse(body_of(error), status_code=row.http)

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
        return Response(status_code=400)  # nobody reads it

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return JSONResponse(body_of(error), status_code=500)  # the server logs it

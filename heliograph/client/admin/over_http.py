"""Administrative calls over the gateway's HTTP port: for programs that do without Ray.

A call is a POST of MessagePack, and so is its answer; the gateway runs it in the role of its caller, by the rights that
the operation needs wherever it comes from. Joining Ray instead would register a job and take seconds of processor time.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgpack

from heliograph.auth.principal import METHOD_BASIC, METHOD_TOKEN
from heliograph.base.errors import (
    AuthenticationError,
    BadRequestError,
    ConnectionLostError,
    HeliographError,
    NotPermittedError,
    ProtocolError,
    RequestTimeoutError,
    ServiceNotReadyError,
)
from heliograph.client import discovery
from heliograph.client.admin.local_socket import CALL_BYTES_MAX
from heliograph.client.identity import Identity
from heliograph.operations.answer import unpacked
from heliograph.operations.table import AdminOperation

PATH = "/admin/heliograph"
MEDIA_TYPE = "application/msgpack"
CONNECT_TIMEOUT_SECONDS = 3.0
ANSWER_TIMEOUT_SECONDS = 40.0  # longer than the gateway waits for a broker
_REFUSALS = {401: AuthenticationError, 403: NotPermittedError, 429: ServiceNotReadyError, 503: ServiceNotReadyError}
_ELSEWHERE = (404, 405, 421)  # a gateway of another cluster, another version or another name


class GatewayAwayError(HeliographError):
    """No gateway of the cluster answers at the address; nothing was done. The brokers may be reached through Ray."""


class GatewayCalls:
    """The gateway of a cluster, as a caller that is not in Ray reaches it.

    Args:
        url: ``http://host:port`` or ``https://host:port``.
        namespace: of the cluster; another cluster's gateway refuses the calls.
        tls: ``tls_ca_file``, ``tls_certificate_file`` and ``tls_key_file``, as options of a client have them.
    """

    def __init__(self, url: str, namespace: str, tls: Mapping[str, str] | None = None) -> None:
        self.url = url
        self._namespace = namespace
        self._tls = dict(tls or {})

    async def run(self, operation: AdminOperation, arguments: dict[str, Any], identity: Identity) -> Any:
        """Run an operation of the table.

        Raises:
            GatewayAwayError: no gateway of this cluster answers; nothing was done.
            ConnectionLostError, RequestTimeoutError: the answer was lost; the outcome is unknown.
            AuthenticationError: the credentials are refused.
            HeliographError: as the operation raises.
        """
        return await asyncio.to_thread(
            self._post, f"operations/{operation.name}", operation.sparse(arguments), identity
        )

    async def parts(self, identity: Identity) -> list[str]:
        """Return the names of the cluster's actors; raises as ``run``."""
        found: list[str] = await asyncio.to_thread(self._post, "parts", [], identity)
        return found

    async def report(self, identity: Identity, seconds: float) -> bytes:
        """Return the report of the cluster as its record; raises as ``run``.

        Args:
            seconds: for the answer.
        """
        found: bytes = await asyncio.to_thread(self._post, "report", [], identity, seconds)
        return found

    def metrics(self, identity: Identity, seconds: float) -> str:
        """Return the metrics of the cluster as Prometheus reads them; blocks for so many seconds at most.

        Raises:
            GatewayAwayError, ConnectionLostError, RequestTimeoutError: no gateway answers, or not in time.
            AuthenticationError, NotPermittedError: the credentials are refused.
        """
        data = self._exchange("GET", "/metrics", None, _authorization(identity), seconds)
        if data[0] != http.HTTPStatus.OK:
            self._understood(*data)
        return data[2].decode("utf-8", "replace")

    async def ask_part(self, part: str, method: str, arguments: Any, identity: Identity, seconds: float) -> Any:
        """Call a method of an actor through the gateway; raises as ``run``."""
        return await asyncio.to_thread(self._post, f"parts/{part}/{method}", arguments, identity, seconds)

    def _post(self, path: str, arguments: Any, identity: Identity, seconds: float = ANSWER_TIMEOUT_SECONDS) -> Any:
        packed = msgpack.packb({"namespace": self._namespace, "arguments": arguments})
        headers = {"Content-Type": MEDIA_TYPE, **_authorization(identity)}
        return self._understood(*self._exchange("POST", f"{PATH}/{path}", packed, headers, seconds))

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> tuple[int, str, bytes]:
        """Return status, media type and body of an answer; the body is cut above its limit."""
        connection = self._connected(seconds)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read(CALL_BYTES_MAX + 1)
        except TimeoutError as error:
            raise RequestTimeoutError(f"{self.url} did not answer within {seconds:.0f} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLostError(f"the gateway at {self.url} hung up: {error}") from error
        finally:
            connection.close()

    def _connected(self, seconds: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        try:
            connection: http.client.HTTPConnection
            if parts.scheme == "https":
                context = _tls_context(self._tls)
                connection = http.client.HTTPSConnection(
                    parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_SECONDS, context=context
                )
            else:
                connection = http.client.HTTPConnection(
                    parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_SECONDS
                )
            connection.connect()
            connection.sock.settimeout(seconds)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise GatewayAwayError(f"no gateway answers at {self.url}: {error}") from error
        return connection

    def _understood(self, status: int, media_type: str, data: bytes) -> Any:
        if len(data) > CALL_BYTES_MAX:
            raise ProtocolError(f"the gateway at {self.url} answers with more than {CALL_BYTES_MAX} bytes")
        if media_type.partition(";")[0] == MEDIA_TYPE:
            return unpacked(data, f"the gateway at {self.url}")
        if status in _ELSEWHERE or status < http.HTTPStatus.BAD_REQUEST:
            raise GatewayAwayError(f"{self.url} is no gateway of {self._namespace}: it answers {status}")
        is_ours = status < http.HTTPStatus.INTERNAL_SERVER_ERROR
        usual: type[HeliographError] = BadRequestError if is_ours else ConnectionLostError
        done = "did not carry the call out" if is_ours else "may have carried the call out or not"
        silent = f"the gateway at {self.url}, or a proxy before it, {done}: it answers {status}"
        raise _REFUSALS.get(status, usual)(_reason(data) or silent)


def noted_gateway(namespace: str, home: Path | None, tls: Mapping[str, str]) -> GatewayCalls | None:
    """Return the gateway of the cluster that ``helio up`` recorded on this machine.

    None: there is none, the process is in Ray already, or RAY_ADDRESS names another Ray.
    """
    state = None if discovery.is_attached() else discovery.noted_state(namespace, home)
    if state is None or state.namespace != namespace or state.own_pid or not state.gateway_url:
        return None
    if os.environ.get("RAY_ADDRESS", state.ray_address) != state.ray_address:
        return None
    return GatewayCalls(state.gateway_url, namespace, tls)


def _authorization(identity: Identity) -> dict[str, str]:
    shown = identity.present()
    if shown.method == METHOD_TOKEN:
        return {"Authorization": f"Bearer {shown.data.decode('latin-1')}"}
    if shown.method == METHOD_BASIC:
        return {"Authorization": f"Basic {base64.b64encode(shown.data).decode()}"}
    return {}


def _tls_context(files: Mapping[str, str]) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=files.get("tls_ca_file") or None)
    if certificate := files.get("tls_certificate_file"):
        context.load_cert_chain(certificate, files.get("tls_key_file") or None)
    return context


def _reason(data: bytes) -> str:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    return str(found.get("reason") or "") if isinstance(found, dict) else ""

"""The door at which a part serves its metrics: ``GET /metrics`` over HTTP/1.1, and nothing else.

It is a listener of its own, so that a scrape needs neither Ray nor the gateway. It is small on purpose: the HTTP server
of the gateway would cost each part 30 MB and a second of its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import parse_qs, urlsplit

from heliograph.auth.authenticator import Authenticator
from heliograph.auth.principal import METHOD_TLS, METHOD_TOKEN, Credentials
from heliograph.base.addressing.web_hosts import FOREIGN_SITES, WebHosts
from heliograph.base.completion import end_task
from heliograph.base.errors import AuthenticationError, HeliographError
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.peer import host_and_port
from heliograph.base.tls.contexts import ServerTls
from heliograph.cluster.ports import pick_free
from heliograph.cluster.watch.config import WatchConfig
from heliograph.metadata.connect import connect_renewing_store
from heliograph.metadata.recipes.revoked_tokens import following_revocations
from heliograph.metrics.exposition import CONTENT_TYPE

PATH = "/metrics"
CONNECTIONS_MAX = 16  # at once; further ones are closed  # I15
HEAD_BYTES_MAX = 16 << 10  # of a request, which holds a token  # I15
HEAD_SECONDS = 5.0  # for a request to arrive, and for the handshake before it
ANSWER_SECONDS = 10.0  # to make an answer, and as long for the client to take it
FOLLOW_SECONDS = 5.0  # between two attempts to follow the list of revoked tokens
FRESH_SECONDS = 1.0  # for which an answer is given again, so that many scrapers cost no more than one

log = logging.getLogger(__name__)
quiet = QuietLog(log)
Text = Callable[[str], Awaitable[str]]  # of the names that are wanted: empty, or ``pulsar``


class RefusedError(HeliographError):
    """A request that is answered with another status than 200."""

    def __init__(self, status: str, reason: str = "") -> None:
        super().__init__(reason)
        self.status = status


class MetricsDoor:
    """One listener.

    Args:
        part: name of the part, for the log.
        host: the address to bind to, an address of this node.
        text: makes the exposition.
    """

    def __init__(self, part: str, host: str, config: WatchConfig, text: Text) -> None:
        self.url = ""  # once it is open
        self._part = part
        self._host = host
        self._config = config
        self._text = text
        self._authenticator = Authenticator(config.auth)
        self._tls = None if config.tls is None else ServerTls(config.tls)
        self._knows_revoked = not (config.auth.is_enabled and config.metadata_url)  # what is refused is known
        self._following: asyncio.Task[None] | None = None
        self._hosts = WebHosts((host, *config.allowed_hosts))
        self._server: asyncio.Server | None = None
        self._open = 0
        self._made: dict[str, tuple[float, bytes]] = {}  # by the names that were wanted: when, and the answer
        self._making = asyncio.Lock()  # one answer at a time

    async def open(self, advertised: str) -> None:
        """Listen at the port of the part; if that is taken, at a free one.

        Args:
            advertised: the host that others reach this node at.

        Raises:
            OSError: the address cannot be used.
        """
        self._hosts = WebHosts((self._host, advertised, *self._config.allowed_hosts))
        port = self._config.port_of(self._part)
        try:
            self._server = await self._listen(port)
        except OSError as error:
            port = await asyncio.to_thread(pick_free, self._host, key=f"{self._part}/metrics")
            log.warning("port %d for metrics is taken (%s): %d is used", self._config.port_of(self._part), error, port)
            self._server = await self._listen(port)
        if not self._knows_revoked:
            self._following = asyncio.get_running_loop().create_task(self._follow(), name="revoked tokens")
        self.url = f"http{'' if self._tls is None else 's'}://{host_and_port(advertised, port)}"

    async def close(self) -> None:
        """Close the listener. Idempotent."""
        if self._server is not None:
            self._server.close()
        await end_task(self._following)
        self._authenticator.close()

    async def _follow(self) -> None:
        """Refuse revoked tokens, as the doors for clients do, until this is cancelled."""
        connect = partial(connect_renewing_store, self._config.metadata_url)
        while True:
            try:
                async with following_revocations(connect, self._authenticator.revoke):
                    self._knows_revoked = True
                    await asyncio.get_running_loop().create_future()
            except HeliographError as error:
                quiet.warning("revoked", "%s does not know which tokens were revoked: %s", self._part, error)
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _listen(self, port: int) -> asyncio.Server:
        tls = None if self._tls is None else self._tls.context
        options = {} if tls is None else {"ssl_handshake_timeout": HEAD_SECONDS}
        return await asyncio.start_server(
            self._serve, self._host, port, ssl=tls, limit=HEAD_BYTES_MAX, backlog=CONNECTIONS_MAX, **options
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open += 1
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(2 * ANSWER_SECONDS):
                writer.write(await self._answer(head.decode("latin-1"), writer))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError, ssl.SSLError):
            pass  # of one scraper
        finally:
            self._open -= 1
            writer.transport.abort()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> bytes:
        try:
            request, *lines = head.split("\r\n")
            parts = (line.partition(":") for line in lines)
            headers = {name.strip().lower(): value.strip() for name, _, value in parts}
            self._refuse_pages(headers)
            names = _wanted(request)
            await self._admit(headers.get("authorization", ""), writer)
            body = await self._body(names)
        except RefusedError as error:
            return _response(error.status, f"{error}\n".encode(), "text/plain; charset=utf-8")
        if "gzip" in headers.get("accept-encoding", ""):
            return _response("200 OK", await asyncio.to_thread(gzip.compress, body, 1), CONTENT_TYPE, "gzip")
        return _response("200 OK", body, CONTENT_TYPE)

    def _refuse_pages(self, headers: dict[str, str]) -> None:
        """Check that no foreign web page asks, which a browser would let read metrics. Raises RefusedError."""
        if not self._hosts.takes(headers.get("host", "localhost")):
            raise RefusedError(
                "421 Misdirected Request", "use the address of this machine, or name the host in gateway.allowed_hosts"
            )
        if "origin" in headers or headers.get("sec-fetch-site") in FOREIGN_SITES:
            raise RefusedError("403 Forbidden", "metrics are for no page of another site")

    async def _admit(self, shown: str, writer: asyncio.StreamWriter) -> None:
        """Check that a caller may see names of topics, which are data: a superuser, where callers are authenticated."""
        if not self._config.auth.is_enabled:
            return
        if not self._knows_revoked:
            raise RefusedError("503 Service Unavailable", "which tokens were revoked is not known yet")
        scheme, _, token = shown.partition(" ")
        certificate = writer.get_extra_info("peercert")
        if scheme.lower() == "bearer":
            credentials = Credentials(METHOD_TOKEN, token.strip().encode("latin-1"))
        else:
            credentials = Credentials(METHOD_TLS, certificate=certificate) if certificate else Credentials()
        peer = writer.get_extra_info("peername")
        try:
            found = await self._authenticator.authenticate(credentials, str(peer[0]) if peer else "")
        except AuthenticationError as error:
            raise RefusedError("401 Unauthorized", str(error)) from error
        if found.role not in self._config.auth.superuser_roles:
            raise RefusedError("403 Forbidden", "metrics are for superuser roles")

    async def _body(self, names: str) -> bytes:
        async with self._making:
            at, body = self._made.get(names, (0.0, b""))
            if body and time.monotonic() - at < FRESH_SECONDS:
                return body
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    body = (await self._text(names)).encode()
            except (TimeoutError, HeliographError) as error:
                raise RefusedError("503 Service Unavailable", str(error) or "no answer in time") from error
            except Exception as error:  # a bug of ours, by which one scrape fails
                quiet.warning("text", "%s: its metrics cannot be read: %r", self._part, error)
                raise RefusedError("500 Internal Server Error", "the metrics cannot be read") from error
            self._made[names] = time.monotonic(), body
            return body


def _wanted(request: str) -> str:
    """Return the names that a request line wants. Raises RefusedError."""
    method, _, rest = request.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not version.startswith("HTTP/1."):
        raise RefusedError("400 Bad Request", "this is no HTTP/1.1")
    if method != "GET":
        raise RefusedError("405 Method Not Allowed", "GET alone is served")
    try:
        url = urlsplit(target)
    except ValueError:
        raise RefusedError("400 Bad Request", "the target is malformed") from None
    if url.path != PATH:
        raise RefusedError("404 Not Found", f"{PATH} alone is served")
    names = parse_qs(url.query).get("names", [""])[0]
    if names not in ("", "pulsar"):
        raise RefusedError("400 Bad Request", "names is pulsar, or not given")
    return names


def _response(status: str, body: bytes, kind: str, encoding: str = "") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
    head.append("X-Content-Type-Options: nosniff")
    if encoding:
        head.append(f"Content-Encoding: {encoding}")
    if status.startswith("401"):
        head.append('WWW-Authenticate: Bearer realm="heliograph"')
    return "\r\n".join([*head, "", ""]).encode() + body


async def opened(part: str, host: str, advertised: str, config: WatchConfig, text: Text) -> MetricsDoor | None:
    """Return the door of a part; None if it cannot be opened, which is a line in the log."""
    try:
        door = MetricsDoor(part, host, config, text)
        await door.open(advertised)
    except (HeliographError, OSError) as error:
        log.warning("the metrics of %s are not served here: %s", part, error)
        return None
    return door


async def closed(door: MetricsDoor | None) -> None:
    with contextlib.suppress(OSError):
        if door is not None:
            await door.close()

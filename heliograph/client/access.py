"""Connecting to a cluster, by address or through the Ray cluster of this process."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from heliograph.base.backoff import Attempts, Backoff
from heliograph.base.errors import BadRequestError, ConnectionLostError
from heliograph.client import discovery
from heliograph.client import options as options_module
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.transport.pool import parse_url
from heliograph.client.discovery import asks_for_tls, tls_options
from heliograph.client.identity import Identity
from heliograph.client.options import ENCRYPTED, ClientOptions
from heliograph.client.sync.client import Client
from heliograph.client.sync.handle import refuse_on_running_loop

log = logging.getLogger(__name__)

_ANY_ADDRESS = f"{ENCRYPTED}any"  # to check options with that need none
_SCHEME = re.compile(r"(pulsar|pulsar\+ssl)://(.+)")


_own: dict[int, Client] = {}  # of this process, by its id: a forked child makes its own


def own_client() -> Client:
    """Return this process's client for tasks and queues that name none; raises as ``connect``.

    It blocks until a broker has answered, the first time.
    """
    found = _own.get(os.getpid())
    if found is None:
        made = connect()
        found = _own.setdefault(os.getpid(), made)
        if found is not made:  # another thread was faster
            made.close()
    return found


def connect(address: str | None = None, *, namespace: str | None = None, **options: Any) -> Client:
    """Return a client of a cluster, after one of its brokers has answered.

    Brokers that do not answer, because they are restarting, are tried again until ``operation_timeout_ms`` has passed.

    Args:
        address: ``pulsar://host:port``, or ``pulsar+ssl://host:port`` for TLS, optionally followed by more
            ``,host:port``. None finds the brokers: their addresses of TLS if an option names a file of TLS or sets
            ``tls_enabled``, or if they have no others. A program that has imported Ray asks it, and joins it first if
            need be; another one takes what ``helio up`` recorded on this machine, if that cluster still answers.
        namespace: Ray namespace of the cluster, used if there is no address. None takes HELIOGRAPH_NAMESPACE, or what
            ``helio up`` recorded in HELIOGRAPH_HOME, or ``heliograph``.
        options: Fields of ``heliograph.client.options.ClientOptions``, such as ``token``, ``token_file`` and
            ``operation_timeout_ms``. Without token, file and user, HELIOGRAPH_TOKEN or HELIOGRAPH_TOKEN_FILE is used;
            without a file of TLS, those that HELIOGRAPH_CLIENT_CA_FILE, HELIOGRAPH_CLIENT_CERTIFICATE_FILE and
            HELIOGRAPH_CLIENT_KEY_FILE name.

    Raises:
        BadRequestError: The address has another form.
        InvalidConfigError: An option is unknown or out of range.
        ClusterNotFoundError: No address was given, and there is no Ray here or no Heliograph in it.
        ConnectionLostError: No broker answers at any address, in ``operation_timeout_ms``; the message lists each with
            its failure.
        AuthenticationError: The brokers refuse the token, or there is none to show.
        RunningLoopError: An event loop runs in this thread; await ``connect_async`` there.
    """
    refuse_on_running_loop(None, "heliograph.connect", "heliograph.connect_async")
    attempts = _attempts(options)
    client = Client(client_options(address, namespace, options, attempts))
    try:
        while True:
            try:
                client.ping()
                return client
            except ConnectionLostError as error:
                time.sleep(_pause_after(error, attempts))
    except BaseException:
        client.close()
        raise


async def connect_async(address: str | None = None, *, namespace: str | None = None, **options: Any) -> AsyncClient:
    """Return an async client of a cluster; takes and raises the same as ``connect``."""
    attempts = _attempts(options)
    if address is None:
        built = await asyncio.to_thread(client_options, address, namespace, options, attempts)  # asking Ray blocks
    else:
        built = client_options(address, namespace, options)
    client = AsyncClient(built)
    try:
        while True:
            try:
                await client.ping()
                return client
            except ConnectionLostError as error:
                await asyncio.sleep(_pause_after(error, attempts))
    except BaseException:
        await client.close()
        raise


def parse_address(address: str) -> tuple[str, ...]:
    """Return the addresses of the single brokers in ``pulsar://host:port,host:port``.

    Raises:
        BadRequestError: The address has another form, an empty host, or a port out of range.
    """
    match = _SCHEME.fullmatch(address)
    if match is None:
        raise BadRequestError(f"{address!r} is not a cluster address; the form is pulsar://host:port", field="address")
    urls = tuple(f"{match[1]}://{part.strip()}" for part in match[2].rstrip("/").split(","))
    for url in urls:
        parse_url(url)
    return urls


def joined_address(urls: Sequence[str]) -> str:
    """Return the addresses of single brokers in the form that ``connect`` takes; all have the scheme of the first."""
    return ",".join([*urls[:1], *(url.partition("://")[2] for url in urls[1:])])


def client_options(
    address: str | None, namespace: str | None, options: dict[str, Any], attempts: Attempts | None = None
) -> ClientOptions:
    """Return the options of a client; raises as ``connect``. Without an address, this asks Ray and blocks.

    Args:
        attempts: at brokers that do not answer; None: one.
    """
    if all(options.get(name) is None for name in ("token", "token_file", "user", "password")):
        options = {**options, **Identity.from_environment().options}
    if address is not None:
        urls, named = parse_address(address), None
    else:
        named = discovery.namespace_or_noted(namespace)
        encrypted = asks_for_tls(options)
        urls = _noted_urls(named, encrypted) or _asked_urls(named, encrypted, attempts)
        options = {**options, "discovery_namespace": named}
    if urls[0].startswith(ENCRYPTED) and not asks_for_tls({**options, "tls_enabled": False}):
        options = {**options, **tls_options(named)}
    return options_module.build(ClientOptions, service_urls=urls, **options)


def _asked_urls(namespace: str, encrypted: bool, attempts: Attempts | None) -> tuple[str, ...]:
    """Return the addresses of brokers that Ray knows and that answer."""
    while True:
        try:
            return tuple(discovery.service_urls(namespace, encrypted=encrypted))
        except ConnectionLostError as error:
            if attempts is None:
                raise
            time.sleep(_pause_after(error, attempts))


def _attempts(options: dict[str, Any]) -> Attempts:
    """Return the attempts to reach a broker, as the options of a client say."""
    checked = options_module.build(ClientOptions, service_urls=(_ANY_ADDRESS,), **options)
    pauses = Backoff(checked.retry_first_ms, checked.retry_max_ms, Random())
    return Attempts(checked.operation_timeout_ms / 1000, pauses, time.monotonic)


def _pause_after(error: ConnectionLostError, attempts: Attempts) -> float:
    """Return the pause before the next attempt.

    Raises:
        ConnectionLostError: there is none: the time is up, or TLS refuses what may not be reached in this way at all.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            raise error
        cause = cause.__cause__
    pause = attempts.pause_after(error)
    log.info("%s; the next attempt is in %.2f s", error, pause)
    return pause


def _noted_urls(namespace: str, encrypted: bool) -> tuple[str, ...]:
    """Return the addresses of brokers that ``helio up`` recorded and that answer; none where Ray is to be asked.

    To join Ray takes seconds of processor time and registers a job. Who uses tasks and actors beside the client has
    imported Ray, and needs to be in the same one.
    """
    if "ray" in sys.modules or os.environ.get("RAY_ADDRESS"):
        return ()
    state = discovery.noted_state(namespace)
    if state is None or state.namespace != namespace or state.own_pid or not state.service_url:
        return ()
    urls = parse_address(state.service_url)
    if (encrypted and not urls[0].startswith(ENCRYPTED)) or not discovery.can_reach(state.ray_address):
        return ()
    return tuple(url for url in urls if discovery.can_reach(url.partition("://")[2]))

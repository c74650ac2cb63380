"""The way in: from an address, or from nothing but the Ray cluster that this process belongs to."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from heliograph import options as options_module
from heliograph.aio.client import AsyncClient
from heliograph.aio.pool import parse_url
from heliograph.client import Client
from heliograph.errors import BadRequestError
from heliograph.options import ClientOptions

_SCHEME = re.compile(r"(pulsar|pulsar\+ssl)://(.+)")


def connect(address: str | None = None, *, namespace: str | None = None, **options: Any) -> Client:
    """A client of a cluster that answers.

    Args:
        address: ``pulsar://host:port``, with further ``,host:port`` behind it. None finds the brokers through Ray.
        namespace: Ray namespace of the cluster, used when there is no address; None: HELIOGRAPH_NAMESPACE, what
            ``helio up`` noted in HELIOGRAPH_HOME, or ``heliograph``.
        options: fields of ``heliograph.options.ClientOptions``, such as ``token`` and ``operation_timeout_ms``.

    Raises:
        BadRequestError: the address has another form.
        InvalidConfigError: unknown option, or one out of range.
        ClusterNotFoundError: no address was given, and there is no Ray here or no Heliograph in it.
        ConnectionLostError: no broker answers at any address; the message lists each with its failure.
        NotPermittedError: the brokers refuse the token.
    """
    client = Client(_client_options(address, namespace, options))
    try:
        client.ping()
    except BaseException:
        client.close()
        raise
    return client


async def connect_async(address: str | None = None, *, namespace: str | None = None, **options: Any) -> AsyncClient:
    """An async client of a cluster that answers; arguments and errors as ``connect``."""
    if address is None:
        built = await asyncio.to_thread(_client_options, address, namespace, options)  # asking Ray blocks
    else:
        built = _client_options(address, namespace, options)
    client = AsyncClient(built)
    try:
        await client.ping()
    except BaseException:
        await client.close()
        raise
    return client


def parse_address(address: str) -> tuple[str, ...]:
    """The single broker addresses in ``pulsar://host:port,host:port``.

    Raises:
        BadRequestError: another form, an empty host, or a port out of range.
    """
    match = _SCHEME.fullmatch(address)
    if match is None:
        raise BadRequestError(f"{address!r} is no address; the form is pulsar://host:port", field="address")
    urls = tuple(f"{match[1]}://{part.strip()}" for part in match[2].rstrip("/").split(","))
    for url in urls:
        parse_url(url)
    return urls


def _client_options(address: str | None, namespace: str | None, options: dict[str, Any]) -> ClientOptions:
    if address is not None:
        return options_module.build(ClientOptions, service_urls=parse_address(address), **options)
    from heliograph import discovery  # only callers inside a Ray cluster need Ray imported

    named = discovery.namespace_or_noted(namespace)
    found = tuple(discovery.service_urls(named))
    return options_module.build(ClientOptions, service_urls=found, discovery_namespace=named, **options)

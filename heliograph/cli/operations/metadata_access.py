"""Sessions of commands with a metadata store that is named by a URL, or by the directory of an embedded one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heliograph.base.errors import BadRequestError, ServiceNotReadyError
from heliograph.base.home import ClusterHome
from heliograph.cluster.joining.noted import noted_state

if TYPE_CHECKING:
    from heliograph.metadata.store import MetadataStore

LOOPBACK = "127.0.0.1"
OWN_ETCD = "etcd"  # names the members that the cluster runs itself, as its metadata_kind does


def is_same(one: str, other: str) -> bool:
    """Return whether two names are plainly of the same store."""
    if "://" in one or "://" in other:
        return one == other
    return Path(one).resolve() == Path(other).resolve()


@contextlib.contextmanager
def named_store(name: str, location: Mapping[str, Any], progress: Callable[[str], None]) -> Iterator[str]:
    """Return the name of a store that can be opened: for the word ``etcd``, the cluster's own members run meanwhile.

    Args:
        location: names the cluster, as arguments of its configuration.

    Raises:
        ConflictError: the word is given, and the cluster runs.
        ResourceError: the members cannot be started.
    """
    if name != OWN_ETCD:
        yield name
        return
    from heliograph.cluster.config import ClusterConfig
    from heliograph.cluster.lifecycle import metadata_alone

    config = ClusterConfig(**location, metadata_kind=OWN_ETCD, metadata_url=None)
    with metadata_alone(config, progress) as url:
        yield url


def store_of(home: Path) -> str:
    """Return the URL of the store of the cluster that runs from a home.

    Raises:
        BadRequestError: none is noted there.
        ServiceNotReadyError: this machine joined a cluster, and its head does not name the store.
    """
    state = noted_state(ClusterHome(home))
    if state is not None and state.lacks_addresses:
        raise ServiceNotReadyError(
            "this machine joined a cluster whose head does not say where its metadata store is: it is away, or "
            "`helio up` has not ended there"
        )
    if state is None or not state.metadata_url:
        raise BadRequestError(
            f"no cluster runs from {home}: start it with helio up, or, if the command has --store, give the URL of "
            "the store or the directory of an embedded one",
            field="store",
        )
    return state.metadata_url


@contextlib.asynccontextmanager
async def opened(name: str, home: Path) -> AsyncIterator[MetadataStore]:
    """Open a session for the length of the block; a directory is served by this process meanwhile.

    Raises:
        ConflictError, ResourceError: the directory is in use, or cannot be used.
        MetadataError: the store cannot be reached.
        InvalidConfigError: the URL is malformed.
    """
    from heliograph.base.guard.handshake import secrets_in
    from heliograph.metadata.connect import connect_store
    from heliograph.metadata.credentials import with_secrets

    if "://" in name:
        store = await connect_store(with_secrets(name, secrets_in() or ClusterHome(home).secret()))
        try:
            yield store
        finally:
            await store.close()
        return
    async with _served(Path(name)) as store:
        yield store


@contextlib.asynccontextmanager
async def _served(directory: Path) -> AsyncIterator[MetadataStore]:
    from heliograph.metadata.backends.embedded.client import EmbeddedStore
    from heliograph.metadata.backends.embedded.server.server import EmbeddedServer

    port_file = directory / "port"
    had_port = port_file.exists()
    from heliograph.base.guard.handshake import new_secret

    secret = new_secret()  # other users of this machine reach the address
    server = EmbeddedServer(directory, LOOPBACK, secret=secret, lock_wait_ms=0)
    await server.start()
    try:
        host, _, port = server.address.rpartition(":")
        store = await EmbeddedStore.connect(host, int(port), secret=secret)
        try:
            yield store
        finally:
            await store.close()
    finally:
        await server.stop()
        if not had_port:
            port_file.unlink(missing_ok=True)  # the cluster's first start chooses one

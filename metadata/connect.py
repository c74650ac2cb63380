"""Opening a session by URL."""

from __future__ import annotations

from urllib.parse import urlsplit

from heliograph.errors import InvalidConfigError, UnsupportedError
from metadata.chroot import ChrootStore
from metadata.embedded.client import EmbeddedStore
from metadata.memory import MemoryServer
from metadata.store import MetadataStore
from metadata.znode import ROOT

_LATER = ("etcd", "zk")


async def connect_store(url: str, *, session_timeout_ms: int = 10_000) -> MetadataStore:
    """Open a session with the store that ``url`` names.

    Args:
        url: ``embedded://host:port[/chroot]`` (the embedded server) or ``memory://name[/chroot]`` (this process only).
            The node of a chroot is created when it is missing.
        session_timeout_ms: asked for; a server may choose another within its bounds.

    Raises:
        InvalidConfigError: the URL is malformed.
        UnsupportedError: a backend that this version does not have.
        ConnectionLossError: the server could not be reached in time; says why.
    """
    parts = urlsplit(url)
    if parts.scheme in _LATER:
        raise UnsupportedError(
            f"{parts.scheme}:// is not offered by this version; it has embedded:// and memory://", field="url"
        )
    if parts.scheme == "embedded":
        host, port = _address_of(url)
        store: MetadataStore = await EmbeddedStore.connect(host, port, session_timeout_ms=session_timeout_ms)
    elif parts.scheme == "memory" and parts.netloc:
        store = MemoryServer.named(parts.netloc).open_session(session_timeout_ms)
    else:
        raise InvalidConfigError(f"{url!r} is no metadata URL, such as embedded://host:port", field="url")
    root = parts.path.rstrip("/")
    if root in ("", ROOT):
        return store
    try:
        return await ChrootStore.below(store, root)
    except BaseException:
        await store.close()
        raise


def _address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise InvalidConfigError(f"{url!r} must name a host and a port: embedded://host:port", field="url")
    return host, port

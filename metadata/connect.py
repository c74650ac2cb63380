"""Sessions by URL. A backend's client library is imported when the first URL asks for it."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

from heliograph.base.errors import InvalidConfigError
from heliograph.base.tls.contexts import ClientTls, ClientTlsFiles, PeerTlsFiles
from heliograph.base.version import extra_required
from heliograph.metadata.backends.embedded.client import EmbeddedStore
from heliograph.metadata.backends.etcd.wire.address import SCHEMES as ETCD_SCHEMES
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.backends.zookeeper.address import parse_address
from heliograph.metadata.chroot import ChrootStore
from heliograph.metadata.credentials import secrets_of_url, without_password
from heliograph.metadata.session.renewing import RenewingStore
from heliograph.metadata.store import MetadataStore
from heliograph.metadata.znode import ROOT, check_path

EMBEDDED_SCHEMES = ("embedded", "embeddeds")
SCHEMES = (*EMBEDDED_SCHEMES, *ETCD_SCHEMES, "zk", "memory")


async def connect_store(url: str, *, session_timeout_ms: int = 10_000, token: str | None = None) -> MetadataStore:
    """Open a session with the store at ``url``, or take a session over.

    Args:
        url: ``embedded://[cluster:secret@]host:port[/chroot]`` (the embedded server; the secret is else that of the
            environment) or, with TLS, ``embeddeds://`` with the files ``?ca=...&cert=...&key=...``;
            ``etcd://[user@]host:port,.../prefix`` or, with
            TLS, ``etcds://`` (``metadata/backends/etcd/wire/address.py`` has their options),
            ``zk://[user:password@]host:port,.../chroot`` (ZooKeeper) or ``memory://name[/chroot]`` (this process
            only). The node of a chroot is created when it is missing.
        session_timeout_ms: the requested timeout; the store may grant another within its bounds. A session that is
            taken over keeps its own, except on ZooKeeper.
        token: the ``session_token`` of a session to take over from the client that has it, which finds it LOST; ""
            for a new session that may be taken over; None for one that is not. On ZooKeeper a session that may be
            taken over is given up when its connection breaks: its next owner has to take it over.

    Raises:
        SessionExpiredError: the session to be taken over has ended, or its password is wrong.
        BadRequestError: the token is malformed.
        InvalidConfigError: the URL is malformed.
        ConnectionLossError: the server could not be reached in time; says why, for each endpoint.
        NotPermittedError: the credentials are refused.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise InvalidConfigError(
            f"{without_password(url)!r} is no metadata URL, such as embedded://host:port; "
            f"the schemes are {', '.join(SCHEMES)}",
            field="url",
        )
    root = parts.path.rstrip("/") or ROOT
    check_path(root)
    if parts.scheme in ETCD_SCHEMES:
        with extra_required():
            from heliograph.metadata.backends.etcd.client import EtcdStore

        # Its keys begin with the path.
        return await EtcdStore.connect(url, session_timeout_ms=session_timeout_ms, token=token)
    if parts.scheme in EMBEDDED_SCHEMES:
        host, port = _address_of(url)
        store: MetadataStore = await EmbeddedStore.connect(
            host,
            port,
            session_timeout_ms=session_timeout_ms,
            token=token,
            tls=_tls_of(parts.scheme, parts.query),
            secret=secrets_of_url(url),
        )
    elif parts.scheme == "zk":
        with extra_required():
            from heliograph.metadata.backends.zookeeper.client import ZooKeeperStore

        address = parse_address(url)
        store = await ZooKeeperStore.connect(
            address.endpoints, session_timeout_ms=session_timeout_ms, credentials=address.credentials, token=token
        )
    else:
        store = MemoryServer.named(parts.netloc).open_session(session_timeout_ms, token)
    if root == ROOT:
        return store
    try:
        return await ChrootStore.below(store, root)
    except BaseException:
        await (store.detach() if token else store.close())
        raise


async def connect_renewing_store(url: str, *, session_timeout_ms: int = 10_000) -> RenewingStore:
    """Open a store that replaces a session that is over. Arguments and errors are those of ``connect_store``."""

    async def connect() -> MetadataStore:
        return await connect_store(url, session_timeout_ms=session_timeout_ms)

    return RenewingStore(await connect(), connect)


def embedded_url(address: str, tls: PeerTlsFiles | None) -> str:
    """Return the URL of the embedded server at ``host:port``."""
    if tls is None:
        return f"embedded://{address}"
    return f"embeddeds://{address}?" + urlencode({"ca": tls.ca, "cert": tls.certificate, "key": tls.key}, safe="/")


def _tls_of(scheme: str, query: str) -> ClientTls | None:
    options = dict(parse_qsl(query))
    if scheme == "embedded" and not options:
        return None
    if scheme == "embedded" or not options.keys() <= {"ca", "cert", "key"}:
        raise InvalidConfigError(
            "files of TLS are named in embeddeds://host:port?ca=FILE&cert=FILE&key=FILE", field="url"
        )
    return ClientTls(ClientTlsFiles(options.get("ca", ""), options.get("cert", ""), options.get("key", "")))


def _address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise InvalidConfigError(
            f"{without_password(url)!r} must name a host and a port: embedded://host:port", field="url"
        )
    return host, port

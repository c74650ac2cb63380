"""The address of an etcd cluster: ``etcd://[user[:password]@]host:port,host:port[/prefix][?options]``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.credentials import credentials_of
from heliograph.metadata.errors import InvalidPathError
from heliograph.metadata.znode import check_path

SCHEMES = ("etcd", "etcds")
DEFAULT_PREFIX = "/heliograph"
DEFAULT_PORT = 2379
_OPTIONS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS files, in PEM. Without ``ca`` the system's authorities are trusted; ``cert`` and ``key`` go together."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """A parsed URL. Its repr holds no password."""

    endpoints: tuple[str, ...]  # host:port
    prefix: str = DEFAULT_PREFIX
    tls: Tls | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> EtcdAddress:
        """Parse a URL. A missing password is taken from HELIOGRAPH_METADATA_PASSWORD.

        Raises:
            InvalidConfigError: the URL is malformed; says how.
        """
        parts = urlsplit(url)
        user_part, _, hosts = parts.netloc.rpartition("@")
        user, password = credentials_of(user_part)
        return cls(
            endpoints=tuple(_endpoint(host) for host in hosts.split(",")),
            prefix=_prefix(parts.path),
            tls=_tls(parts.scheme, parts.query),
            user=unquote(user),
            password=unquote(password),
        )


def _endpoint(text: str) -> str:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        host, port = None, 0
    if not host or parts.path or parts.username is not None:
        raise InvalidConfigError(
            f"{text!r} is no etcd endpoint: a URL looks like etcd://host:2379,host:2379/prefix", field="url"
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _prefix(path: str) -> str:
    prefix = unquote(path).rstrip("/")
    if not prefix:
        return DEFAULT_PREFIX
    try:
        check_path(prefix)
    except InvalidPathError as error:
        raise InvalidConfigError(f"the prefix {prefix!r} of the etcd URL is no path", field="url") from error
    if ":" in prefix:
        raise InvalidConfigError("a colon cannot stand in the prefix of an etcd URL", field="url")
    return prefix


def _tls(scheme: str, query: str) -> Tls | None:
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        raise InvalidConfigError(f"an etcd URL has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}", field="url")
    if scheme != "etcds":
        if options:
            raise InvalidConfigError(f"the option {min(options)!r} is for TLS: write etcds://", field="url")
        return None
    if ("cert" in options) != ("key" in options):
        raise InvalidConfigError("the options 'cert' and 'key' of an etcd URL go together", field="url")
    return Tls(**{name: Path(value) for name, value in options.items()})

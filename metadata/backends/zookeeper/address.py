"""The ``zk://`` URL: ``zk://[user[:password]@]host[:port][,host[:port]...][/chroot]``."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.credentials import credentials_of

DEFAULT_PORT = 2181
REQUESTS_IN_FLIGHT_MAX = 128  # sent and not answered; more wait their turn
REQUEST_BYTES_MAX = 8 << 20  # of one request; the server's own jute.maxbuffer may be lower
SERVER_BYTES_DEFAULT = 0xFFFFF  # a server's jute.maxbuffer when nobody has set it
WATCHES_MAX = 100_000  # of one session
RECONNECT_SECONDS_MIN = 0.2  # what one attempt to re-connect gets at least
RESUME_PAUSE_SECONDS = 0.1  # from the end of a connection to the first attempt to resume its session


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """A parsed URL. ``root`` is the chroot's path, "" for none; ``credentials`` are user and password."""

    endpoints: tuple[tuple[str, int], ...]
    root: str
    credentials: tuple[str, str] | None


def parse_address(url: str) -> ZooKeeperAddress:
    """Return the parts of a URL. User and password may be percent-encoded; an IPv6 address stands in brackets.

    A missing password is taken from HELIOGRAPH_METADATA_PASSWORD.

    Raises:
        InvalidConfigError: the URL is malformed.
    """
    parts = urlsplit(url)
    userinfo, at, hosts = parts.netloc.rpartition("@")
    user, password = credentials_of(userinfo)
    if parts.scheme != "zk" or parts.query or parts.fragment or (at and not (user and password)):
        raise _refused(url)
    credentials = (unquote(user), unquote(password)) if at else None
    endpoints = tuple(_endpoint(url, host) for host in hosts.split(","))
    return ZooKeeperAddress(endpoints, parts.path.rstrip("/"), credentials)


def _endpoint(url: str, text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refused(url) from None
    if not host or text.endswith(":") or port == 0:
        raise _refused(url)
    return host, DEFAULT_PORT if port is None else port


def _refused(url: str) -> InvalidConfigError:
    shown = url.rpartition("@")[2]  # not the password
    return InvalidConfigError(
        f"{shown!r} is no address of ZooKeeper, such as zk://user:password@host1:2181,host2:2181/chroot", field="url"
    )

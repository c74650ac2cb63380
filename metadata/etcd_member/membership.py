"""The members of one etcd cluster, with their names and addresses, which never change. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

from heliograph.base.errors import ResourceError
from heliograph.base.peer import host_and_port
from heliograph.base.tls.contexts import PeerTlsFiles

COUNTS = (1, 3, 5)  # members; an even number survives no more failures than one less
PORTS_OF_A_MEMBER = 2  # for clients, and for its peers


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """One member. ``host`` is its address for clients and the other members."""

    name: str
    host: str
    client_port: int

    @property
    def peer_port(self) -> int:
        return self.client_port + 1

    @property
    def endpoint(self) -> str:
        """The address for clients, ``host:port``."""
        return host_and_port(self.host, self.client_port)

    def client_url(self, tls: PeerTlsFiles | None) -> str:
        return f"{_scheme(tls)}://{self.endpoint}"

    def peer_url(self, tls: PeerTlsFiles | None) -> str:
        return f"{_scheme(tls)}://{host_and_port(self.host, self.peer_port)}"


@dataclass(frozen=True, slots=True)
class EtcdMembership:
    """All members of one cluster.

    Attributes:
        cluster_id: random, made for the first start; disks with another id belong to another cluster.
        is_formed: whether the members have served. From then on none of them may begin on an empty disk by itself.
    """

    cluster_id: str
    members: tuple[EtcdMember, ...]
    is_formed: bool = False

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> EtcdMembership:
        """Return the membership from its ``fields``.

        Raises:
            ResourceError: the fields are no membership.
        """
        try:
            members = tuple(
                EtcdMember(str(one["name"]), str(one["host"]), int(one["client_port"])) for one in fields["members"]
            )
            return cls(str(fields["cluster_id"]), members, bool(fields["is_formed"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ResourceError(f"the record of the etcd members is damaged ({error!r})") from error

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def quorum(self) -> int:
        """The number of members that have to serve so that anything can be read or written."""
        return len(self.members) // 2 + 1

    def member(self, name: str) -> EtcdMember:
        return next(each for each in self.members if each.name == name)

    def initial_cluster(self, tls: PeerTlsFiles | None) -> str:
        return ",".join(f"{each.name}={each.peer_url(tls)}" for each in self.members)

    def store_url(self, tls: PeerTlsFiles | None) -> str:
        """Return the URL of the metadata store, which names every member."""
        hosts = ",".join(each.endpoint for each in self.members)
        if tls is None:
            return f"etcd://{hosts}"
        return f"etcds://{hosts}?" + urlencode({"ca": tls.ca, "cert": tls.certificate, "key": tls.key}, safe="/")


def _scheme(tls: PeerTlsFiles | None) -> str:
    return "http" if tls is None else "https"

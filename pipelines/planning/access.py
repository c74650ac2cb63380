"""Which cluster tables are of, who asks, and by which way: a gateway, the process that runs it all, or Ray."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self, cast

from heliograph.base.errors import BadRequestError
from heliograph.client import discovery
from heliograph.client.access import joined_address
from heliograph.client.admin.admin import Admin, AdminSync
from heliograph.client.admin.over_http import GatewayCalls, noted_gateway
from heliograph.client.discovery import tls_options
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.client.options import ENCRYPTED
from heliograph.protocol.topic_name import TopicName

OWNERS_MAX = 16  # partitions whose owners are asked for, to know several brokers (I15)


class ClusterKeywords(IdentityOptions, total=False):
    """The keywords of every function of tables: which cluster, and who asks. Keywords of the identity are ``token``,
    ``token_file``, or ``user`` and ``password``; without them it is that of the environment.

    Args:
        namespace: the cluster's Ray namespace; None: the one that ``heliograph.connect`` uses.
        gateway: ``http://host:port``, which is asked for plans and addresses; without it the one that is noted on this
            machine, or the brokers through Ray.
    """

    namespace: str | None
    gateway: str


def check_keywords(function: str, kind: type, given: Mapping[str, object]) -> None:
    """Do nothing if all keywords of a call are those of a class of keywords.

    Raises:
        TypeError: one is not; names the function, the keyword and the nearest one that there is.
    """
    known: frozenset[str] = kind.__optional_keys__  # type: ignore[attr-defined]  # every typed dictionary has them
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else f": it has {', '.join(sorted(known))}"
            raise TypeError(f"{function}() has no keyword {name!r}{hint}")


@dataclass(frozen=True)
class ClusterAccess:
    """A cluster as drivers reach it: those who plan, and those who start to write. It can be pickled.

    Args:
        namespace: Ray namespace of the cluster; None: the one that ``heliograph.connect`` uses.
        identity: who asks; None: that of the environment.
        gateway: ``http://host:port`` or ``https://host:port``; empty: the gateway that ``helio up`` recorded on this
            machine, or the brokers' actors where this process has joined Ray.
        tls: the files of TLS for gateway and brokers, by the names of a client's options.
    """

    namespace: str | None = None
    identity: Identity | None = field(default=None, repr=False)
    gateway: str = ""
    tls: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the access that ``ClusterKeywords`` ask for.

        Raises:
            InvalidConfigError: the credentials contradict each other.
        """
        shown = {name: given[name] for name in IdentityOptions.__optional_keys__ if name in given}
        identity = Identity.of(cast(IdentityOptions, shown))
        return cls(given.get("namespace"), identity, (given.get("gateway") or "").rstrip("/"))

    def admin(self) -> Admin:
        """Return the administration of the cluster; joins Ray if that is the only way.

        Raises:
            ClusterNotFoundError: there is no cluster.
        """
        namespace, gateway = self._reached()
        return Admin(namespace, self.identity, gateway)

    def admin_sync(self) -> AdminSync:
        """Return the blocking form of ``admin``; errors are the same."""
        namespace, gateway = self._reached()
        return AdminSync(namespace, self.identity, gateway)

    def brokers(self, topics: Sequence[TopicName]) -> tuple[str, Mapping[str, str]]:
        """Return the address at which clients find the cluster, and the files of TLS that they need there.

        Args:
            topics: that are written; those that create themselves are created. A gateway tells the brokers that own
                them, which producers may ask for.

        Raises:
            ClusterNotFoundError: there is no cluster, or none of its brokers answers.
            BadRequestError: the brokers speak TLS only, and no files of TLS are named.
        """
        namespace, gateway = self._reached()
        if gateway is None:
            urls = discovery.service_urls(namespace, encrypted=bool(self.tls))
        else:
            urls = self._told_by(AdminSync(namespace, self.identity, gateway), topics)
        found = joined_address([url for url in urls if url.partition("://")[0] == urls[0].partition("://")[0]])
        files = self.tls or (tls_options(namespace) if found.startswith(ENCRYPTED) else {})
        if found.startswith(ENCRYPTED) and not files:
            raise BadRequestError("the brokers speak TLS only: name a tlsCaFile", field="tlsCaFile")
        return found, files

    def _told_by(self, admin: AdminSync, topics: Sequence[TopicName]) -> list[str]:
        if topics:
            names = (one for topic in topics for one in topic.partitions(admin.partitions(str(topic), may_create=True)))
            told = [admin.lookup(str(one)) for one in islice(names, OWNERS_MAX)]
        else:
            told = [dict(one) for one in admin.brokers.list()]
        plain, encrypted = (list(dict.fromkeys(one[name] for one in told if one[name])) for name in _URLS)
        return encrypted if self.tls or not plain else plain

    def _reached(self) -> tuple[str, GatewayCalls | None]:
        namespace = discovery.namespace_or_noted(self.namespace)
        if self.gateway:
            return namespace, GatewayCalls(self.gateway, namespace, self.tls)
        gateway = noted_gateway(namespace, None, self.tls)
        if gateway is None and discovery.own_process_state(namespace) is None:
            discovery.attach(namespace)
        return namespace, gateway


_URLS = ("service_url", "service_url_tls")

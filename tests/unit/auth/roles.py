"""The roles of the authorisation matrices, and what each of them may do; independent of the product's rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import Principal
from heliograph.metadata import codec, paths
from heliograph.metadata.model import AuthPolicies, NamespacePolicies, TenantRecord
from heliograph.metadata.store import MetadataStore

TENANT, NAMESPACE = "acme", "acme/shop"
TOPIC = "persistent://acme/shop/orders"
SUBSCRIPTION = "billing"  # only the consumers' roles below are on its list
CONFIG = AuthConfig(
    enabled=True, superuser_roles=("root", "gate"), proxy_roles=("gate", "narrow"), anonymous_role="anonymous"
)
GRANTS = AuthPolicies(
    namespace_auth={
        "writer": ("produce",),
        "reader": ("consume",),
        "guest": ("consume",),
        "app-*": ("consume",),
        "narrow": ("produce",),
    },
    destination_auth={TOPIC: {"feeder": ("produce",)}},
    subscription_auth_roles={SUBSCRIPTION: ("reader", "app-7")},
)

CLUSTER, ADMIN = "superuser", "tenant admin"
PRODUCE, CONSUME, EITHER = "produce", "consume", "produce or consume"
LIST = "produce or consume on the namespace"
SUBSCRIBE = "consume by a subscription"

_PRODUCES, _CONSUMES = {PRODUCE, EITHER}, {CONSUME, EITHER}
_ORDINARY = {PRODUCE, CONSUME, EITHER, LIST, SUBSCRIBE}
MAY: dict[str, set[str]] = {
    "root": {CLUSTER, ADMIN, *_ORDINARY},
    "owner": {ADMIN, *_ORDINARY},
    "rival": set(),  # administers another tenant
    "writer": {*_PRODUCES, LIST},
    "reader": {*_CONSUMES, LIST, SUBSCRIBE},
    "guest": {*_CONSUMES, LIST},  # is not on the list of the subscription
    "app-7": {*_CONSUMES, LIST, SUBSCRIBE},
    "feeder": _PRODUCES,  # on the topic, not on its namespace
    "nobody": set(),
    "anonymous": set(),
}
NARROW = {*_PRODUCES, LIST}


@dataclass(frozen=True)
class Caller:
    """A role, perhaps behind a proxy, and what it may do."""

    principal: Principal
    may: frozenset[str]

    def __str__(self) -> str:
        return str(self.principal)


def callers() -> Iterator[Caller]:
    """Yield every role: by itself, behind a proxy that may do everything, and behind one that may only produce."""
    for role, may in MAY.items():
        yield Caller(Principal(role), frozenset(may))
        yield Caller(Principal(role, "gate"), frozenset(may))
        yield Caller(Principal(role, "narrow"), frozenset(may & NARROW))


async def create_records(store: MetadataStore) -> None:
    """Create the tenants, the namespace and the grants of the matrices."""
    for tenant, admin in ((TENANT, "owner"), ("other", "rival")):
        await store.create(paths.tenant(tenant), codec.encode(TenantRecord((admin,))))
    for tenant in (TENANT, "other"):
        grants = GRANTS if tenant == TENANT else AuthPolicies()
        record = codec.encode(NamespacePolicies(auth_policies=grants))
        await store.create(paths.namespace(tenant, "shop"), record)

"""Endpoints of Pulsar's administrative REST interface that Heliograph does not offer.

A client is told in words, with 501, why a thing is not there. A policy that is not offered can be asked for and
removed: none is ever set."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from heliograph.base.errors import UnsupportedError

_ONE_CLUSTER = "there is one cluster, which nothing is replicated from or to"
_NO_TIERS = "there is no tiered storage"
_NO_FUNCTIONS = "functions and connectors do not run in the cluster; run a program with a consumer and a producer"
NO_TRANSACTIONS = "transactions are not offered; deduplication gives exactly-once publishing to one topic"

# Policies of Pulsar by their names in URLs, with the reason.
NOT_OFFERED = {
    "offloadPolicies": _NO_TIERS,
    "offloadThreshold": _NO_TIERS,
    "offloadThresholdInSeconds": _NO_TIERS,
    "offloadDeletionLagMs": _NO_TIERS,
    "removeOffloadPolicies": _NO_TIERS,
    "scanOffloadedLedgers": _NO_TIERS,
    "replicatorDispatchRate": _ONE_CLUSTER,
    "shadowTopics": _ONE_CLUSTER + ", and a topic has no read-only copies under other names",
    "migration": _ONE_CLUSTER,
    "dispatcherPauseOnAckStatePersistent": "every acknowledgement is stored, so there is nothing to pause for",
    "entryFilters": "brokers load no code of users; filter in the consumer",
    "antiAffinity": "bundles are spread over brokers by load alone",
    "bookieAffinity": "bookies have racks, not groups; the policy placement chooses how racks are used",
    "resourcegroup": "rates are limited by topic and subscription, not by group",
    "resourceGroup": "rates are limited by topic and subscription, not by group",
}
# Answers to a client that asks for them; the other endpoints answer with status 204 and no body.
NOTHING_SET: dict[str, Any] = {
    "offloadThreshold": -1,
    "offloadThresholdInSeconds": -1,
    "dispatcherPauseOnAckStatePersistent": False,
    "shadowTopics": [],
}

_TREES = {
    "/admin/v3/functions": _NO_FUNCTIONS,
    "/admin/v2/functions": _NO_FUNCTIONS,
    "/admin/functions": _NO_FUNCTIONS,
    "/admin/v3/sources": _NO_FUNCTIONS,
    "/admin/v3/source": _NO_FUNCTIONS,
    "/admin/v3/sinks": _NO_FUNCTIONS,
    "/admin/v3/sink": _NO_FUNCTIONS,
    "/admin/v2/worker": _NO_FUNCTIONS,
    "/admin/v2/worker-stats": _NO_FUNCTIONS,
    "/admin/v3/packages": "packages belong to functions, which do not run in the cluster",
    "/admin/v3/transactions": NO_TRANSACTIONS,
    "/admin/v2/resourcegroups": NOT_OFFERED["resourcegroup"],
    "/admin/v2/resource-quotas": "bundles are balanced by their measured load, not by quotas",
    "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies": "any broker may serve any namespace",
    "/admin/v2/clusters/{cluster}/failureDomains": "bundles are spread over brokers by load alone",
    "/admin/v2/metadata/migration": "the metadata store of a running cluster cannot be changed",
}
_METHODS = ["GET", "POST", "PUT", "DELETE"]

router = APIRouter(include_in_schema=False)


def _add(path: str, reason: str) -> None:
    name = next(part for part in reversed(path.split("/")) if not part.startswith("{"))

    async def refuse() -> Response:
        raise UnsupportedError(f"{name} is not offered: {reason}", field="path")

    router.add_api_route(path, refuse, methods=_METHODS)
    router.add_api_route(path + "/{rest:path}", refuse, methods=_METHODS)


for _path, _reason in _TREES.items():
    _add(_path, _reason)

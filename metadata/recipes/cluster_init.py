"""The nodes that every cluster needs."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace

from heliograph.base.clock import wall_ms
from heliograph.metadata.codec import decode, encode
from heliograph.metadata.errors import NodeExistsError
from heliograph.metadata.model import ClusterRecord, NamespacePolicies, Persistence
from heliograph.metadata.paths import CLUSTER, PERSISTENT_NODES, namespace
from heliograph.metadata.recipes.update_loop import update
from heliograph.metadata.store import MetadataStore

DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"


async def initialise(store: MetadataStore, *, bundles: int = NamespacePolicies().bundles) -> ClusterRecord:
    """Create the cluster's permanent nodes, its record and the default namespace, if they are missing.

    Idempotent, and safe to run from several processes at once: all get the same record. A failed call may have created
    some of the nodes; call again.

    Args:
        bundles: of the default namespace, if it is missing.

    Raises:
        RecordError: the cluster's record is damaged or from a newer version.
        ConnectionLossError, SessionExpiredError.
    """
    for path in PERSISTENT_NODES:
        await _ensure(store, path, b"")
    await _ensure(
        store, namespace(DEFAULT_TENANT, DEFAULT_NAMESPACE), encode(NamespacePolicies(bundles=bundles, own=()))
    )
    fresh = ClusterRecord(instance_id=uuid.uuid4().hex, created_ms=wall_ms())
    await _ensure(store, CLUSTER, encode(fresh))
    value, _ = await store.get(CLUSTER)
    return decode(ClusterRecord, value)


async def set_default_copies(store: MetadataStore, wanted: Persistence) -> None:
    """Give a default namespace of an older release the cluster's numbers of copies, unless an operator has set others.

    Brokers do so for namespaces whose records say which policies were set.

    Raises:
        RecordError: the namespace's record is damaged or from a newer version.
        ConnectionLossError, SessionExpiredError: the outcome is unknown; call again.
    """
    path = namespace(DEFAULT_TENANT, DEFAULT_NAMESPACE)
    await update(store, path, NamespacePolicies, lambda policies: _with_copies(policies, wanted))


def _with_copies(policies: NamespacePolicies, wanted: Persistence) -> NamespacePolicies | None:
    """Return the policies with the cluster's numbers of copies; None if they have these already, or numbers of their
    own."""
    if policies.persistence == wanted or policies.own is not None:
        return None
    return replace(policies, persistence=wanted)


async def _ensure(store: MetadataStore, path: str, value: bytes) -> None:
    if await store.exists(path) is not None:
        return
    with contextlib.suppress(NodeExistsError):
        await store.create(path, value, parents=True)

"""The nodes that a cluster cannot do without."""

from __future__ import annotations

import contextlib
import time
import uuid

from metadata.codec import decode, encode
from metadata.errors import NodeExistsError
from metadata.model import ClusterRecord, NamespacePolicies
from metadata.paths import CLUSTER, PERSISTENT_NODES, namespace
from metadata.store import MetadataStore

DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"


async def initialise(store: MetadataStore) -> ClusterRecord:
    """Make the cluster's standing nodes, its record and the default namespace, where they are missing.

    Idempotent, and safe to run from several processes at once: all get the same record. A failed call may have made
    some of the nodes; call again.

    Raises:
        RecordError: the cluster's record is damaged or from a newer version.
        ConnectionLossError, SessionExpiredError.
    """
    for path in PERSISTENT_NODES:
        await _ensure(store, path, b"")
    await _ensure(store, namespace(DEFAULT_TENANT, DEFAULT_NAMESPACE), encode(NamespacePolicies()))
    fresh = ClusterRecord(instance_id=uuid.uuid4().hex, created_ms=time.time_ns() // 1_000_000)
    await _ensure(store, CLUSTER, encode(fresh))
    value, _ = await store.get(CLUSTER)
    return decode(ClusterRecord, value)


async def _ensure(store: MetadataStore, path: str, value: bytes) -> None:
    if await store.exists(path) is not None:
        return
    with contextlib.suppress(NodeExistsError):
        await store.create(path, value, parents=True)

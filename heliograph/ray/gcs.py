"""Records of Ray's GCS: values by key, nodes, actors and workers. Ray is imported when a function needs it.

Ray publishes the state of actors and workers through its dashboard only, which a cluster need not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

CALL_SECONDS = 10.0
_ALIVE = 0  # of a node, in Ray's numbers


class DetachedGcs:
    """The GCS at ``host:port``, for a process that need not have joined its Ray. Calls block."""

    def __init__(self, address: str) -> None:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled

        self._client = GcsClient(address=address)

    def value(self, key: bytes, space: bytes) -> bytes | None:
        """Return the value of a key; None if it has none."""
        found: bytes | None = self._client.internal_kv_get(key, space, timeout=CALL_SECONDS)
        return found

    def keep(self, key: bytes, value: bytes, space: bytes) -> None:
        """Keep the value of a key, in place of an older one."""
        self._client.internal_kv_put(key, value, True, space, timeout=CALL_SECONDS)

    def forget(self, key: bytes, space: bytes) -> None:
        self._client.internal_kv_del(key, False, space, timeout=CALL_SECONDS)

    def programs(self) -> Mapping[str, Any]:
        """Return the versions of the Ray's programs: ``ray_version``, ``python_version``, as far as it tells them."""
        return dict(json.loads(self.value(b"CLUSTER_METADATA", b"cluster") or b"{}"))

    def nodes_at(self, address: str) -> frozenset[str]:
        nodes = self._client.get_all_node_info(timeout=CALL_SECONDS).values()
        return frozenset(
            node.node_id.hex() for node in nodes if node.node_manager_address == address and node.state == _ALIVE
        )


def keys(prefix: bytes, space: bytes) -> list[bytes]:
    """Return the keys with a prefix that the joined Ray keeps."""
    found: list[bytes] = _store()._internal_kv_list(prefix, namespace=space)
    return found


def value(key: bytes, space: bytes) -> bytes | None:
    """Return the value of a key in the joined Ray; None if it has none."""
    found: bytes | None = _store()._internal_kv_get(key, namespace=space)
    return found


def keep(key: bytes, value: bytes, space: bytes) -> None:
    """Keep the value of a key in the joined Ray, in place of an older one."""
    _store()._internal_kv_put(key, value, overwrite=True, namespace=space)


def forget(key: bytes, space: bytes) -> None:
    _store()._internal_kv_del(key, namespace=space)


def draining_nodes() -> frozenset[str]:
    """Return the ids of the nodes that Ray drains, as hexadecimal digits."""
    from ray._private.state import state

    return frozenset(each if isinstance(each, str) else each.hex() for each in state.get_draining_nodes())


def actors_alive() -> list[tuple[str, str]]:
    """Return name and node id of every actor that is alive, of all namespaces."""
    from ray._private.state import actors

    found: Mapping[str, dict[str, Any]] = actors(actor_state_name="ALIVE")
    return [(actor["Name"], actor["Address"]["NodeID"]) for actor in found.values()]


def actor_state(actor: str) -> tuple[str, int]:
    """Return Ray's word for the state of an actor, by its id, and how often Ray started it again; empty if unknown."""
    from ray._private.state import actors

    found: Mapping[str, Any] = actors(actor_id=actor)
    return str(found.get("State", "")), int(found.get("NumRestarts", 0))


def actor_id(handle: Any) -> str:
    """Return the id of an actor as hexadecimal digits; an actor that is started again keeps it."""
    return str(handle._actor_id.hex())


def workers_ended_for_memory() -> list[tuple[int, int, str]]:
    """Return the workers that Ray ended because memory ran short, as far as its GCS remembers them.

    Returns:
        when, in ms since the epoch; the pid; and what Ray says of it, which lists all that it ended then.
    """
    from ray._private import state as private
    from ray.core.generated import common_pb2, gcs_pb2

    state: Any = private.state
    messages: Any = gcs_pb2
    if not hasattr(state, "_connect_and_get_accessor"):  # Ray 2.49
        state._check_connected()
        accessor = state.global_state_accessor
    else:
        accessor = state._connect_and_get_accessor()
    rows = map(messages.WorkerTableData.FromString, accessor.get_worker_table())
    kinds: Any = common_pb2
    short = kinds.WorkerExitType.NODE_OUT_OF_MEMORY
    return [
        (int(row.end_time_ms), int(row.pid), str(row.exit_detail))
        for row in rows
        if row.exit_type == short and not row.is_alive
    ]


def _store() -> Any:
    from ray.experimental import internal_kv

    return internal_kv

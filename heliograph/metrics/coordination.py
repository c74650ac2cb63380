"""The metrics of the metadata store that a cluster runs itself, and of its operator (pure).

The store counts since its process began, the operator since its session with the store began. ``key`` is the name in
the ``statistics`` of their actors. Members of etcd and ZooKeeper have exporters of their own.
"""

from __future__ import annotations

from functools import partial

from heliograph.metrics.metric import Metric, counter_of, gauge_of, histogram_of

_STORE, _OPERATOR = "heliograph_metadata", "heliograph_operator"
store_counter, store_gauge = partial(counter_of, _STORE, "part"), partial(gauge_of, _STORE, "part")
operator_counter, operator_gauge = partial(counter_of, _OPERATOR, "part"), partial(gauge_of, _OPERATOR, "part")

METADATA_METRICS: tuple[Metric, ...] = (
    store_gauge("nodes", "nodes of the tree"),
    store_gauge("cache_bytes", "memory for nodes in use, blocks of RocksDB and its write buffers"),
    store_counter("disk_waits", "requests that waited for nodes to be read from the disk"),
    store_gauge("sessions", "sessions that have not expired"),
    store_gauge("connections", "connections open now"),
    store_counter("connections_refused", "connections closed because there were too many"),
    store_gauge("watches", "watches that clients have set"),
    store_counter("transactions", "changes of the tree"),
    store_counter("commits", "writes to the disk, each with all changes that arrived during the one before"),
    histogram_of(
        _STORE, "part", "commit_latency_seconds", "time of a write to the disk, with its sync", "commit_latency"
    ),
    store_gauge("held_bytes", "values and answers that wait for their write to the disk"),
)
OPERATOR_METRICS: tuple[Metric, ...] = (
    operator_gauge("is_leader", "1 while this operator acts, 0 while it waits or has no session"),
    operator_counter("looks", "looks at the nodes and the parts, one each second"),
    operator_counter("looks_failed", "looks that ended because Ray or the metadata store did not answer"),
    histogram_of(
        _OPERATOR,
        "part",
        "look_duration_seconds",
        "time of a look, with the questions to the parts and the parts that it creates",
        "look_duration",
    ),
    operator_gauge("parts_wanted", "parts that are to run"),
    operator_gauge("parts_answering", "parts that answered the latest questions"),
    operator_counter("parts_created", "actors of parts created because none was there"),
    operator_counter("creations_failed", "attempts to create one that Ray refused"),
    operator_gauge("changes_under_way", "parts that are moved, emptied, restarted or removed now"),
)

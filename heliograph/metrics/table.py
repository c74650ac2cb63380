"""All metrics, in the order of the exposition (pure)."""

from __future__ import annotations

from heliograph.metrics.auditor import AUDITOR_METRICS
from heliograph.metrics.bookie import BOOKIE_METRICS
from heliograph.metrics.broker import BROKER_METRICS, TOPIC_METRICS
from heliograph.metrics.cluster import CLUSTER_METRICS, GATEWAY_METRICS
from heliograph.metrics.coordination import METADATA_METRICS, OPERATOR_METRICS
from heliograph.metrics.metric import Metric

# The headings of the reference page, with the metrics under each of them.
TABLE: dict[str, tuple[Metric, ...]] = {
    "The cluster": CLUSTER_METRICS,
    "Brokers": BROKER_METRICS,
    "Namespaces, topics and subscriptions": TOPIC_METRICS,
    "Bookies": BOOKIE_METRICS,
    "The auditor and repair": AUDITOR_METRICS,
    "The gateway": GATEWAY_METRICS,
    "The metadata store": METADATA_METRICS,
    "The operator": OPERATOR_METRICS,
}
METRICS: dict[str, Metric] = {metric.name: metric for metrics in TABLE.values() for metric in metrics}

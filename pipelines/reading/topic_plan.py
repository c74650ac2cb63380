"""The plan of a table that is a whole topic: its ranges of entries, and the schemas that decode its values."""

from __future__ import annotations

from heliograph.pipelines.planning.patience import Patience
from heliograph.pipelines.planning.plan import plan_topic, schema_versions
from heliograph.pipelines.planning.ranges import LedgerRange
from heliograph.pipelines.reading.options import ReadOptions
from heliograph.pipelines.reading.registry import TopicSchemas, is_registry, schemas_of


def plan_table(topic: str, options: ReadOptions, wait_seconds: float) -> tuple[list[LedgerRange], TopicSchemas | None]:
    """Return the ranges of a topic, and its schemas if they are asked for, else None.

    Args:
        wait_seconds: how long a cluster is waited for that does not answer, with a line in the log for each attempt.

    Raises:
        DataLostError, TopicNotFoundError, ClusterNotFoundError: as ``plan_topic`` raises.
        NotFoundError, UnsupportedError: the topic has no schema, or one that cannot be decoded.
    """
    patience = Patience(wait_seconds)
    ranges = patience.call(
        f"planning a read of {topic}",
        lambda: plan_topic(
            topic,
            start=options.start,
            end=options.end,
            on_data_loss=options.on_data_loss,
            compacted=options.compacted,
            latest=options.latest,
            where=options.where,
            access=options.access,
        ),
    )
    return ranges, patience.call(f"reading the schemas of {topic}", lambda: registry_schemas(topic, options))


def registry_schemas(topic: str, options: ReadOptions) -> TopicSchemas | None:
    """Return the schemas of the registry if they are asked for, else None."""
    if not is_registry(options.schema):
        return None
    return schemas_of(topic, schema_versions(topic, options.access), options.read)

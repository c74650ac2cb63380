"""The plan of a table that is a whole topic: its ranges of entries, and the schemas that decode its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from heliograph.base.errors import BadRequestError
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import Where
from heliograph.pipelines.planning.loss import OnDataLoss
from heliograph.pipelines.planning.patience import BATCH_SECONDS, Patience
from heliograph.pipelines.planning.plan import plan_topic, schema_versions
from heliograph.pipelines.planning.ranges import LedgerRange, Position
from heliograph.pipelines.reading.columns import OnUnreadable, check_columns
from heliograph.pipelines.reading.registry import USUAL, RegistryRead, TopicSchemas, schemas_of

REGISTRY = "registry"


class PlanOptions(TypedDict, total=False):
    """Which entries are read, and where; as in ``plan_topic``."""

    start: Mapping[int, Position] | None
    end: Mapping[int, Position] | None
    on_data_loss: OnDataLoss
    compacted: bool
    where: Where | None
    namespace: str | None


def plan_table(
    topic: str,
    schema: object,
    columns: Sequence[str] | None,
    on_unreadable: OnUnreadable,
    credentials: IdentityOptions,
    read: RegistryRead = USUAL,
    wait_seconds: float = BATCH_SECONDS,
    **options: Unpack[PlanOptions],
) -> tuple[list[LedgerRange], TopicSchemas | None]:
    """Return the ranges of a topic, and its schemas where ``schema`` is ``registry``, otherwise None.

    Args:
        columns, on_unreadable: checked before anything is asked.
        credentials: who reads.
        read: how values are read by the registry.
        wait_seconds: how long a cluster is waited for that does not answer, with a line in the log for each attempt.

    Raises:
        BadRequestError: there is no such column, or ``read`` does not go with the schema.
        DataLostError, TopicNotFoundError, ClusterNotFoundError: as ``plan_topic`` raises.
        NotFoundError, UnsupportedError: the topic has no schema, or one that cannot be decoded.
    """
    check_columns(columns, on_unreadable)
    check_read(schema, read)
    identity = Identity.of(credentials)
    patience = Patience(wait_seconds)
    ranges = patience.call(f"planning a read of {topic}", lambda: plan_topic(topic, identity=identity, **options))
    access = ClusterAccess(options.get("namespace"), identity)
    what = f"reading the schemas of {topic}"
    return ranges, patience.call(what, lambda: registry_schemas(topic, schema, access, read))


def check_read(schema: object, read: RegistryRead) -> None:
    """Do nothing if ``schema`` asks for the registry, or nothing is said about how it is read.

    Raises:
        BadRequestError: something is.
    """
    if read != USUAL and not _is_registry(schema):
        raise BadRequestError(
            "protobuf_descriptor and recursion_depth are for schema='registry'", field="schema", limit=REGISTRY
        )


def registry_schemas(
    topic: str, schema: object, access: ClusterAccess, read: RegistryRead = USUAL
) -> TopicSchemas | None:
    """Return the schemas of the registry where ``schema`` asks for them, otherwise None."""
    if not _is_registry(schema):
        return None
    return schemas_of(topic, schema_versions(topic, access=access), read)


def _is_registry(schema: object) -> bool:
    return isinstance(schema, str) and schema == REGISTRY

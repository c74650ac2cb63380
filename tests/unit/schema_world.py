"""The brokers' schema administration over metadata in memory, as the gateway reaches it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from actors.broker.admin_schemas import SchemaAdmin
from actors.broker.schema_registry import SchemaRegistry
from metadata.memory import MemoryServer
from metadata.model import NamespacePolicies, TopicPolicies


def schemas_in_memory() -> SchemaAdmin:
    """What ``admin.schemas`` is in a cluster, without the cluster."""

    async def policies(_: Any) -> NamespacePolicies:
        return NamespacePolicies()

    async def topic_policies(_: Any) -> TopicPolicies:
        return TopicPolicies()

    catalog = SimpleNamespace(policies=policies, topic_policies=topic_policies)
    context: Any = SimpleNamespace(schemas=SchemaRegistry(MemoryServer().open_session()), catalog=catalog)
    return SchemaAdmin(context)

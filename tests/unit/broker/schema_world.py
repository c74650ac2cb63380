"""The brokers' schema administration over metadata in memory, as the gateway reaches it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from heliograph.actors.broker.admin.schemas import SchemaAdminService
from heliograph.actors.broker.schema.registry import SchemaRegistry
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.model import NamespacePolicies, TopicPolicies


def schemas_in_memory() -> SchemaAdminService:
    """Return what ``admin.schemas`` is in a cluster."""

    async def policies(_: Any) -> NamespacePolicies:
        return NamespacePolicies()

    async def topic_policies(_: Any) -> TopicPolicies:
        return TopicPolicies()

    catalog = SimpleNamespace(policies=policies, topic_policies=topic_policies)
    context: Any = SimpleNamespace(schemas=SchemaRegistry(MemoryServer().open_session()), catalog=catalog)
    return SchemaAdminService(context)

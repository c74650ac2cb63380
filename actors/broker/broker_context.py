"""What the parts of one broker share."""

from __future__ import annotations

from dataclasses import dataclass

from actors.broker.catalog import Catalog
from actors.broker.config import BrokerConfig
from actors.broker.ownership import Ownership
from actors.broker.publish_budget import PublishBudget
from actors.broker.schema_registry import SchemaRegistry
from actors.broker.topics import Topics


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Handed to every connection. ``producer_prefix`` makes the names that the broker gives unique over restarts."""

    config: BrokerConfig
    catalog: Catalog
    ownership: Ownership
    topics: Topics
    schemas: SchemaRegistry
    publish_budget: PublishBudget
    producer_prefix: str

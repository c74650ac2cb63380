"""The objects that all connections of one broker share."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.limits.publish_budget import PublishBudget
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.namespaces.topic_lists import TopicLists
from heliograph.actors.broker.schema.registry import SchemaRegistry
from heliograph.actors.broker.topic.topics import Topics


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """What a connection needs of its broker."""

    config: BrokerConfig
    catalog: Catalog
    ownership: Ownership
    topics: Topics
    schemas: SchemaRegistry
    publish_budget: PublishBudget
    topic_lists: TopicLists
    producer_prefix: str  # makes the producer names that the broker generates unique over restarts

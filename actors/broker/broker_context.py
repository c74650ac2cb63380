"""The objects that all connections of one broker share."""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.actors.broker.authorization import Authorizer
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.limits.publish_budget import PublishBudget
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.ownership import LastKnown, Ownership
from heliograph.actors.broker.namespaces.topic_lists import TopicLists
from heliograph.actors.broker.schema.registry import SchemaRegistry
from heliograph.actors.broker.topic.topics import Topics
from heliograph.auth.audit import AuditLog
from heliograph.auth.authenticator import Authenticator
from heliograph.base.guard.shares import ShareCounter
from heliograph.protocol.topic_name import TopicName


@dataclass(slots=True)
class BrokerContext:
    """The broker's services for a connection. ``config`` is replaced when a setting changes while the broker runs."""

    config: BrokerConfig
    catalog: Catalog
    ownership: Ownership
    topics: Topics
    schemas: SchemaRegistry
    publish_budget: PublishBudget
    topic_lists: TopicLists
    authorizer: Authorizer
    authenticator: Authenticator
    audit: AuditLog
    producer_prefix: str  # makes the producer names that the broker generates unique over restarts
    producers_of_roles: ShareCounter = field(default_factory=ShareCounter)
    admin_changes: ShareCounter = field(default_factory=ShareCounter)  # under way by ADMIN_CALL, by role
    openings_waiting: int = 0  # commands of all connections that wait to open a topic
    partitions: LastKnown[TopicName, int] = field(default_factory=LastKnown)  # of topics, as clients were told

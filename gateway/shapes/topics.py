"""Checked topic and subscription names from the segments of a URL."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path
from starlette.convertors import Convertor, register_url_convertor
from typing_extensions import override

from heliograph.base.errors import BadRequestError, InvalidTopicNameError
from heliograph.gateway.ports import AdminPort
from heliograph.gateway.shapes.url_segments import decoded
from heliograph.protocol.topic_name import DOMAINS, TopicName

PERSISTENT, NON_PERSISTENT = DOMAINS
ADMIN_TOPIC = "/admin/v2/{domain:topic_domain}/{tenant}/{namespace}/{topic}"  # of either domain


class DomainConvertor(Convertor[str]):
    """A path convertor that matches only the domains of topics, so that other admin paths keep their routes."""

    regex = "|".join(DOMAINS)

    @override
    def convert(self, value: str) -> str:
        return value

    @override
    def to_string(self, value: str) -> str:
        return value


register_url_convertor("topic_domain", DomainConvertor())


def topic_name(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """Return the topic that four URL segments name.

    Raises:
        InvalidTopicNameError: the domain is unknown, or a part is not legal in a topic's name.
    """
    if domain not in DOMAINS:
        raise InvalidTopicNameError(f"unknown topic domain {domain!r}: use {' or '.join(DOMAINS)}", field="domain")
    return TopicName.parse(f"{domain}://{decoded(tenant)}/{decoded(namespace)}/{decoded(topic)}")


def partition_of(topic: TopicName, partition: int) -> TopicName:
    """Return the name of one partition of a partitioned topic.

    Raises:
        InvalidTopicNameError: the topic is a partition itself.
    """
    if topic.partition >= 0:
        raise InvalidTopicNameError(f"{topic} is a partition itself", field="topic")
    return topic.of_partition(partition)


def subscription_name(segment: str) -> str:
    """Return the subscription that a URL segment names.

    Raises:
        BadRequestError: the name is empty.
    """
    name = decoded(segment)
    if not name.strip():
        raise BadRequestError("the subscription's name is empty", field="subscription")
    return name


async def topics_in(
    admin: AdminPort, tenant: str, namespace: str, domain: str = PERSISTENT, **page: Any
) -> list[tuple[TopicName, int]]:
    """Return the topics of the namespace that two URL segments name, by name, each with its number of partitions.

    Args:
        page: ``after``, ``limit`` and ``prefix``, as ``list_topics`` has them.

    Raises:
        InvalidTopicNameError: a part is not legal in the name of a tenant or namespace.
        NamespaceNotFoundError: there is no such namespace.
    """
    checked = topic_name(PERSISTENT, tenant, namespace, "any")
    # A broker of the release before knows no pages and no domain, so only a page names one.
    found = await admin.list_topics(checked.namespace, domain=domain if any(page.values()) else "", **page)
    pairs = [(TopicName.parse(item["name"]), int(item["partitions"])) for item in found]
    return sorted((pair for pair in pairs if pair[0].domain == domain), key=lambda pair: str(pair[0]))


async def topic_names_in(
    admin: AdminPort, tenant: str, namespace: str, domain: str = PERSISTENT, **page: Any
) -> list[str]:
    """Return the full names of the same topics; a partitioned topic is listed as its partitions."""
    pairs = await topics_in(admin, tenant, namespace, domain, **page)
    return [str(name) for topic, count in pairs for name in topic.partitions(count)]


async def _topic_in_url(
    tenant: Annotated[str, Path(description="Tenant, such as `public`")],
    namespace: Annotated[str, Path(description="Namespace, such as `default`")],
    topic: Annotated[str, Path(description="Local name of the topic; a `/` in it is written `%2F`")],
    domain: Annotated[str, Path(description="`persistent` or `non-persistent`")],
) -> TopicName:
    return topic_name(domain, tenant, namespace, topic)


async def _persistent_topic_in_url(
    tenant: Annotated[str, Path(description="Tenant, such as `public`")],
    namespace: Annotated[str, Path(description="Namespace, such as `default`")],
    topic: Annotated[str, Path(description="Local name of the topic; a `/` in it is written `%2F`")],
) -> TopicName:
    return topic_name(PERSISTENT, tenant, namespace, topic)


async def _subscription_in_url(
    subscription: Annotated[str, Path(description="Name of the subscription; a `/` in it is written `%2F`")],
) -> str:
    return subscription_name(subscription)


TopicInUrl = Annotated[TopicName, Depends(_topic_in_url)]
PersistentTopicInUrl = Annotated[TopicName, Depends(_persistent_topic_in_url)]
SubscriptionInUrl = Annotated[str, Depends(_subscription_in_url)]

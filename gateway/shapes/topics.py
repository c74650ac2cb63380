"""Checked topic and subscription names from the segments of a URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import Depends, Path, Query
from starlette.convertors import Convertor, register_url_convertor
from typing_extensions import override

from heliograph.base.errors import BadRequestError, InvalidTopicNameError
from heliograph.gateway.ports import AdminPort
from heliograph.gateway.shapes.url_segments import decoded
from heliograph.operations.table import TOPICS_LISTED_MAX, TOPICS_PAGE
from heliograph.protocol.topic_name import DOMAINS, TopicName

PERSISTENT, NON_PERSISTENT = DOMAINS
ADMIN_TOPIC = "/admin/v2/{domain:topic_domain}/{tenant}/{namespace}/{topic}"  # of either domain


After = Annotated[str, Query(description="The last name of the page before")]
Limit = Annotated[int, Query(ge=0, le=TOPICS_LISTED_MAX, description="Topics of one page; 0: all, if they fit")]
Prefix = Annotated[str, Query(description="Beginning of the local names")]


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
    admin: AdminPort, tenant: str, namespace: str, domain: str = PERSISTENT, after: str = "", limit: int = 0,
    prefix: str = "",
) -> AsyncIterator[tuple[TopicName, int]]:  # fmt: skip
    """Return the topics of the namespace that two URL segments name, each with its number of partitions, page by page.

    Args:
        domain: empty for both.
        after, prefix: as ``list_topics`` has them.
        limit: how many the caller takes; 0: not known.

    Raises:
        InvalidTopicNameError: a part is not legal in the name of a tenant or namespace.
        NamespaceNotFoundError: there is no such namespace.
    """
    checked, at_once = topic_name(PERSISTENT, tenant, namespace, "any"), min(limit or TOPICS_PAGE, TOPICS_PAGE)
    async for page in admin.topic_pages(checked.namespace, prefix, domain, after, at_once):
        for item in page:
            topic = TopicName.parse(item["name"])
            if not domain or topic.domain == domain:
                yield topic, int(item["partitions"])


async def topic_names_in(
    admin: AdminPort, tenant: str, namespace: str, domain: str = PERSISTENT, after: str = "", limit: int = 0,
    prefix: str = "", wanted: Callable[[str], bool] | None = None,
) -> list[str]:  # fmt: skip
    """Return the full names of the same topics; a partitioned topic is listed as its partitions.

    Args:
        limit: how many topics, with all their partitions; 0: all.
        wanted: which of the names; None: all.

    Raises:
        BadRequestError: there are more than ``TOPICS_LISTED_MAX``, and no limit is given.
    """
    names: list[str] = []
    topics = 0
    async for topic, count in topics_in(admin, tenant, namespace, domain, after, 0 if wanted else limit, prefix):
        kept = [name for name in map(str, topic.partitions(count)) if wanted is None or wanted(name)]
        names += kept
        topics += bool(kept)
        if topics == limit > 0:
            break
        check_listed(len(names), limit)
    return names


def check_listed(count: int, limit: int) -> None:
    """Raise BadRequestError if a list without a limit has more names than one answer."""
    if count > TOPICS_LISTED_MAX and not limit:  # I15
        raise BadRequestError(
            "there are more topics than one list: ask for pages, by limit and after",
            field="limit", limit=f"1..{TOPICS_LISTED_MAX} topics",
        )  # fmt: skip


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

"""The topics of a multi-topic consumer: a list, or a pattern over one namespace."""

from __future__ import annotations

import re

from heliograph.base.errors import BadRequestError, TopicNotFoundError
from heliograph.gateway.ports import AdminPort
from heliograph.gateway.shapes.topics import PERSISTENT
from heliograph.gateway.websocket.query import TopicsQuery
from heliograph.protocol.topic_name import TopicName

TOPICS_MAX = 1000  # of one consumer
_NAMESPACE = re.compile(r"(?:(persistent|non-persistent)://)?([^/]+)/([^/]+)/(.+)", re.DOTALL)


async def topics_of(query: TopicsQuery, admin: AdminPort) -> list[str]:
    """Return the full names of the topics that ``topics`` or ``topicsPattern`` names, sorted for a pattern.

    A pattern is matched against the topics that exist now; topics that are created later are not added.

    Raises:
        BadRequestError: not exactly one of the two is given, or the pattern is not a regular expression.
        TopicNotFoundError: no topic matches the pattern.
    """
    listed, pattern = query.topics, query.topicsPattern
    if (listed is None) == (pattern is None):
        raise BadRequestError("give topics or topicsPattern, not both", field="topics")
    if listed is not None:
        names = [str(TopicName.parse(part.strip())) for part in listed.split(",") if part.strip()]
    else:
        assert pattern is not None, "exactly one of the two is given"
        names = await _matching(pattern, admin)
    if not names or len(names) > TOPICS_MAX:
        reason = f"{len(names)} topics are given, 1 to {TOPICS_MAX} are allowed"
        raise BadRequestError(reason, field="topics", limit=f"1..{TOPICS_MAX} topics")
    return list(dict.fromkeys(names))


async def _matching(pattern: str, admin: AdminPort) -> list[str]:
    parts = _NAMESPACE.fullmatch(pattern)
    if parts is None:
        raise BadRequestError("topicsPattern must be persistent://tenant/namespace/<pattern>", field="topicsPattern")
    domain, tenant, namespace, local = parts.groups()
    try:
        expression = re.compile(local)
    except re.error as error:
        raise BadRequestError(f"topicsPattern is not a regular expression: {error}", field="topicsPattern") from error
    found = await admin.list_topics(f"{tenant}/{namespace}")
    topics = [topic for item in found if (topic := TopicName.parse(item["name"])).domain == (domain or PERSISTENT)]
    names = sorted(str(topic) for topic in topics if expression.fullmatch(topic.local_name))
    if not names:
        raise TopicNotFoundError(f"no topic matches {pattern}", field="topicsPattern")
    return names

"""The topics of a multi-topic consumer: a list, or a pattern over one namespace."""

from __future__ import annotations

import asyncio
import re

from heliograph.base.errors import BadRequestError, TopicNotFoundError, UnsupportedError
from heliograph.gateway.ports import AdminPort
from heliograph.gateway.shapes.topics import PERSISTENT
from heliograph.gateway.websocket.query import TopicsQuery
from heliograph.protocol.topic_name import TopicName
from heliograph.protocol.topics_pattern import TopicsPattern

TOPICS_MAX = 1000  # of one consumer
NAMES_BETWEEN_TURNS = 100  # matched before other work of the event loop
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
        expression = TopicsPattern(local)
    except UnsupportedError as error:
        raise BadRequestError(str(error), field="topicsPattern", limit=error.limit) from error
    names: list[str] = []
    async for page in admin.topic_pages(f"{tenant}/{namespace}", expression.prefix, domain or PERSISTENT):
        for number, item in enumerate(page):
            if number % NAMES_BETWEEN_TURNS == 0:
                await asyncio.sleep(0)
            topic = TopicName.parse(item["name"])
            if topic.domain == (domain or PERSISTENT) and expression.matches(topic.local_name):
                names.append(str(topic))
        if len(names) > TOPICS_MAX:  # I15
            break
    if not names:
        raise TopicNotFoundError(f"no topic matches {pattern}", field="topicsPattern")
    return sorted(names)

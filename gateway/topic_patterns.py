"""Which topics a multi-topic consumer means: a list, or a pattern over one namespace."""

from __future__ import annotations

import re

from gateway.ports import Admin
from gateway.query import Query
from gateway.topics import PERSISTENT
from heliograph.errors import BadRequestError, TopicNotFoundError
from heliograph.protocol.topic_name import TopicName

TOPICS_MAX = 1000  # of one consumer
PATTERN_CHARACTERS_MAX = 512
_NAMESPACE = re.compile(r"(?:(persistent|non-persistent)://)?([^/]+)/([^/]+)/(.+)", re.DOTALL)


async def topics_of(query: Query, admin: Admin) -> list[str]:
    """Full names of the topics that ``topics`` or ``topicsPattern`` names, sorted for a pattern.

    A pattern is matched against the topics that exist now; topics made later do not join.

    Raises:
        BadRequestError: not exactly one of the two, or a pattern that is no regular expression.
        TopicNotFoundError: no topic matches the pattern.
    """
    listed, pattern = query.text("topics"), query.text("topicsPattern")
    if (listed is None) == (pattern is None):
        raise BadRequestError("give topics or topicsPattern, and not both", field="topics")
    if listed is not None:
        names = [str(TopicName.parse(part.strip())) for part in listed.split(",") if part.strip()]
    else:
        assert pattern is not None, "one of the two is there"
        names = await _matching(pattern, admin)
    if not names or len(names) > TOPICS_MAX:
        raise BadRequestError(f"{len(names)} topics are named", field="topics", limit=f"1..{TOPICS_MAX} topics")
    return list(dict.fromkeys(names))


async def _matching(pattern: str, admin: Admin) -> list[str]:
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        limit = f"{PATTERN_CHARACTERS_MAX} characters"
        raise BadRequestError("topicsPattern is too long", field="topicsPattern", limit=limit)
    parts = _NAMESPACE.fullmatch(pattern)
    if parts is None:
        raise BadRequestError("topicsPattern must be persistent://tenant/namespace/<pattern>", field="topicsPattern")
    domain, tenant, namespace, local = parts.groups()
    try:
        expression = re.compile(local)
    except re.error as error:
        raise BadRequestError(f"topicsPattern is no regular expression: {error}", field="topicsPattern") from error
    found = await admin.list_topics(f"{tenant}/{namespace}")
    topics = [topic for item in found if (topic := TopicName.parse(item["name"])).domain == (domain or PERSISTENT)]
    names = sorted(str(topic) for topic in topics if expression.fullmatch(topic.local_name))
    if not names:
        raise TopicNotFoundError(f"no topic matches {pattern}", field="topicsPattern")
    return names

"""The topics of a namespace in the order of their names, read in pages from the catalog."""

from __future__ import annotations

from collections.abc import AsyncIterator

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.metadata.paths import quoted
from heliograph.protocol.topic_name import TopicName


async def listed(catalog: Catalog, probe: TopicName, after: str, prefix: str) -> AsyncIterator[tuple[TopicName, int]]:
    """Return the topics of the namespace and domain of ``probe``, each with its number of partitions.

    A partitioned topic comes once. The order is that of the local names, in which characters other than letters, digits
    and ``_.-~`` count as their percent-encoded form. Only what is taken is read.

    Args:
        after: the full name of a topic that need not exist; only those after it come.
        prefix: the beginning of their local names.
    """
    before = f"{probe.domain}://{probe.namespace}/"
    start, beginning = "", quoted(prefix)
    if after.startswith(before):
        start = quoted(after.removeprefix(before)) + "\0"
    elif after > before:
        return
    start = max(start, beginning)
    wholes = catalog.siblings_from(catalog.partitioned_path, probe, start, beginning)
    is_whole: dict[str, bool] = {}  # of the topics whose partitions were met
    whole = await anext(wholes, None)
    async for topic in catalog.siblings_from(catalog.topic_path, probe, start, beginning):
        while whole is not None and _order(whole) <= _order(topic):
            is_whole[str(whole)] = True
            yield whole, await catalog.partitions(whole)
            whole = await anext(wholes, None)
        if topic.partition >= 0:
            parent = topic.partitioned_name
            if parent not in is_whole:
                is_whole[parent] = await catalog.partitions(TopicName.parse(parent)) > 0
            if is_whole[parent]:
                continue
        if not is_whole.get(str(topic)):
            yield topic, 0
    while whole is not None:
        yield whole, await catalog.partitions(whole)
        whole = await anext(wholes, None)


def _order(topic: TopicName) -> str:
    return quoted(topic.local_name)

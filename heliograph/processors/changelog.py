"""The changelog of one partition: owned by one process, fenced, and restored from its compacted form."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.base.errors import NotPermittedError, ProtocolError, TopicExistsError, TopicNotFoundError
from heliograph.processors.records import GROUP_KEY, OWNER_KEY, GroupRecord

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.consumer.message import Message
    from heliograph.client.aio.producer.producer import AsyncProducer

COMPACTION_BYTES = 64 << 20  # that are published before the changelog is compacted again
RESTORE_SECONDS = 60.0  # without a message, of those that are stored

log = logging.getLogger(__name__)


class Changelog:
    """Makes the groups of one partition durable.

    Args:
        topic: Full name of the partition of the changelog.
    """

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self.topic = topic
        self._client = client
        self._producer: AsyncProducer[bytes | str] | None = None

    async def own(self, load: Callable[[str, bytes | None], None]) -> GroupRecord:
        """Become the owner, and read what earlier owners stored, up to now. They can store nothing any more.

        Args:
            load: Gets each record of the changelog, in order: its key, and its bytes or None.

        Returns:
            The last group; if there is none, an empty group with a new life.

        Raises:
            ProtocolError: The changelog holds something else.
            RequestTimeoutError, ConnectionLostError, ...: As ``AsyncProducer.send`` and ``AsyncReader.receive`` raise
            them.
        """
        self._producer = self._client.producer(
            self.topic, access_mode="exclusive_with_fencing", stop_at_failure=True, linger_ms=0, send_timeout_ms=0
        )
        await self._producer.open()
        mark = uuid.uuid4().hex
        await self._producer.send(mark, key=OWNER_KEY)  # everything that the owner before stored comes before it
        last = GroupRecord({}, life=uuid.uuid4().hex[:16])
        async with self._client.reader(self.topic, "earliest", read_compacted=True) as reader:
            while True:
                for message in await reader.receive_many(1_000, RESTORE_SECONDS):
                    if message.key == OWNER_KEY and message.data == mark.encode():
                        return last
                    last = self._loaded(message, load) or last

    async def commit(self, group: GroupRecord) -> None:
        """Store a group: durable when this returns. Then its records are on their way, for compaction.

        Raises:
            ProducerFencedError: Another owner has the partition; nothing was stored.
            HeliographError: It may be stored; this changelog is of no use any more.
        """
        assert self._producer is not None, "an owner commits"
        stored = await self._producer.enqueue(group.encode(), key=GROUP_KEY)
        for key, data in group.states.items():  # before the next group, and never without this one
            (await self._producer.enqueue(data, key=key)).add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )
        await stored

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()

    def _loaded(self, message: Message, load: Callable[[str, bytes | None], None]) -> GroupRecord | None:
        if message.key == GROUP_KEY:
            return GroupRecord.decode(message.data)
        if message.key is None:
            raise ProtocolError(f"{self.topic} holds a message without a key, so it is no changelog", field="state")
        if message.key != OWNER_KEY:
            load(message.key, message.data or None)
        return None


async def prepare(client: AsyncClient, topic: str, partitions: int) -> int:
    """Create the changelog of a processor unless it is there, and have it compacted.

    Returns:
        How many partitions it has, 0 for none.
    """
    try:
        found = await client.partitions(topic)
    except TopicNotFoundError:
        found = 0
    if not found:  # also where its first use would create it
        try:
            await client.admin.create_topic(topic, partitions)
        except TopicExistsError:
            log.debug("%s is there", topic)
        found = await client.partitions(topic)
    try:
        await client.admin.namespaces.set_topic_policies(topic, {"compaction_threshold_bytes": COMPACTION_BYTES})
    except NotPermittedError as error:
        log.warning("%s is compacted only if its namespace says so: %s", topic, error)
    return found

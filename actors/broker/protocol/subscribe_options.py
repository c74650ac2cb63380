"""The options of a SUBSCRIBE: type, start and key sharing of the subscription."""

from __future__ import annotations

from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.records.position import EARLIEST, LATEST, Position, from_unsigned
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import wall_ms
from heliograph.base.errors import ConsumerAssignError, PolicyLimitError
from heliograph.protocol import pulsar_pb2 as pb

TYPES = {
    pb.CommandSubscribe.EXCLUSIVE: SubscriptionType.EXCLUSIVE,
    pb.CommandSubscribe.SHARED: SubscriptionType.SHARED,
    pb.CommandSubscribe.FAILOVER: SubscriptionType.FAILOVER,
    pb.CommandSubscribe.KEY_SHARED: SubscriptionType.KEY_SHARED,
}


def check_type(kind: SubscriptionType, topic: BrokerTopic) -> None:
    """Raise PolicyLimitError unless the topic's policies allow subscriptions of a type."""
    allowed = topic.policies.subscription_types
    if allowed and kind.value not in allowed.split(","):
        raise PolicyLimitError(
            f"{topic.name} does not allow {kind.value} subscriptions", field="subscription_types", limit=allowed
        )


def set_key_sharing(consumer: SubscriptionConsumer, wanted: pb.CommandSubscribe) -> None:
    """Set how a consumer of a Key_Shared subscription shares keys; raise ConsumerAssignError if it names no range."""
    if wanted.sub_type != wanted.KEY_SHARED or not wanted.HasField("key_shared_meta"):
        return
    sharing = wanted.key_shared_meta
    consumer.state.allow_out_of_order = sharing.allow_out_of_order_delivery
    if sharing.mode == pb.STICKY:
        if not sharing.hash_ranges:
            raise ConsumerAssignError("a consumer with fixed key ranges needs at least one", field="hashRanges")
        consumer.state.key_ranges = tuple((one.start, one.end) for one in sharing.hash_ranges)


async def index_of(chain: Chain, position: Position) -> int:
    """Return the index at which reading from a position starts: that of the first entry kept at or after it. The chain
    is in memory from there on."""
    if position == LATEST:
        return chain.end
    await chain.load(position)
    return chain.first if position == EARLIEST else chain.at_or_after(position)


async def start_index(topic: BrokerTopic, chain: Chain, wanted: pb.CommandSubscribe) -> int | None:
    """Return the index at which a new subscription starts, None for after the last entry.

    A reader starts at the entry that it names. Its client knows whether it wants the named message itself, and drops
    the messages of the batch that it does not want.
    """
    if not wanted.durable and wanted.HasField("start_message_id"):
        if wanted.start_message_rollback_duration_sec:
            before = wall_ms() - 1_000 * wanted.start_message_rollback_duration_sec
            return chain.from_base(await topic.index_at_time(before))
        data = wanted.start_message_id
        return await index_of(chain, from_unsigned(data.ledger_id, data.entry_id))
    is_earliest = wanted.initial_position == wanted.EARLIEST
    return chain.first if is_earliest else None

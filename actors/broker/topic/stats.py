"""The statistics of a topic, in Pulsar's shapes and names. Rates are of the last minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from heliograph.actors.broker.limits.rates import SAMPLES_KEPT
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.producers.producer import TopicProducer
from heliograph.actors.broker.records.activity import ChangedTopics, TopicActivity
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.topic_chain import ledger_count, ledgers_after, stored_bytes
from heliograph.actors.broker.subscription.message_count import ReadAllowance, count_messages
from heliograph.actors.broker.subscription.stats import sample_rates as sample_subscription
from heliograph.actors.broker.subscription.stats import subscription_stats
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.errors import NoSuchLedgerError
from heliograph.base.clock import iso_time, wall_ms
from heliograph.operations.table import LEDGERS_PAGE_MAX
from heliograph.protocol.topic_name import TopicName

Json = dict[str, Any]

# Not added up over partitions.
_LATEST = frozenset({"topicEpoch", "topicCreationTimeStamp", "lastPublishTimeStamp", "lastExpireTimestamp"})
RANGES_SHOWN_MAX = 1_000  # of a cursor's acknowledged ranges
TOPICS_A_TURN = 20  # of the event loop, so that requests do not wait long
CHANGES_A_TURN = 1_000  # topics that are only taken out of a queue


def sample_rates(topic: BrokerTopic, now: float) -> None:
    """Note the counters of a topic, its producers and its subscriptions for the rates of the next minute.

    Args:
        now: seconds of the monotonic clock.
    """
    topic.admission.window.sample(now, topic.messages_in, topic.ledger.bytes_added)
    for producer in topic.producers.values():
        producer.window.sample(now, producer.messages_in, producer.bytes_in)
    for subscription in topic.subscriptions.values():
        sample_subscription(subscription, now)


class RateSampler:
    """Takes the samples of the topics in which something happened lately. No topic has a timer, and one at rest has no
    sample taken: all kept samples have the same counters.

    Attributes:
        moving: the topics that are not at rest, with how many samples are left to take.
    """

    def __init__(self, changed: ChangedTopics, find: Callable[[TopicName], BrokerTopic | None]) -> None:
        self.moving: dict[TopicActivity, int] = {}
        self._changed = changed
        self._find = find

    async def sample(self) -> None:
        """Take a sample of each topic that is not at rest, in turns of the event loop."""
        for number, activity in enumerate(self._changed.take()):
            if number % CHANGES_A_TURN == 0:
                await asyncio.sleep(0)
            self.moving[activity] = SAMPLES_KEPT
        for number, activity in enumerate(list(self.moving)):
            if number % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
            topic, left = self._find(activity.name), self.moving.pop(activity, 0) - 1
            if topic is None or topic.activity is not activity:
                continue
            sample_rates(topic, time.monotonic())
            if left > 0:
                self.moving[activity] = left


async def count_backlogs(topic: BrokerTopic, allowed: ReadAllowance) -> None:
    """Count the messages of the backlogs of a topic, as far as that is possible now."""
    for subscription in list(topic.subscriptions.values()):
        await count_messages(subscription, topic.ledger, topic.reader, allowed)


def topic_stats(topic: BrokerTopic, broker_id: str) -> Json:
    """Return Pulsar's ``stats`` of one topic, with backlogs as ``count_backlogs`` counted them last."""
    now = time.monotonic()
    storage = storage_size(topic)
    subscriptions = {name: subscription_stats(s, topic.ledger, storage) for name, s in topic.subscriptions.items()}
    counters = {
        "msgInCounter": topic.messages_in,
        "bytesInCounter": topic.ledger.bytes_added,
        "msgOutCounter": sum(s["msgOutCounter"] for s in subscriptions.values()),
        "bytesOutCounter": sum(s["bytesOutCounter"] for s in subscriptions.values()),
    }
    rate_in, throughput_in = topic.admission.published(now)
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "msgRateOut": sum((s["msgRateOut"] for s in subscriptions.values()), 0.0),
        "msgThroughputOut": sum((s["msgThroughputOut"] for s in subscriptions.values()), 0.0),
        **counters,
        "averageMsgSize": topic.ledger.bytes_added / topic.messages_in if topic.messages_in else 0.0,
        "storageSize": storage,
        "backlogSize": max((s["backlogSize"] for s in subscriptions.values()), default=0),
        "offloadedStorageSize": 0,
        "publishers": [publisher_stats(producer, now) for producer in topic.producers.values()],
        "waitingPublishers": len(topic.admission.producers.access.waiting),
        "subscriptions": subscriptions,
        "unavailableSubscriptions": {name: str(one.error) for name, one in topic.recoveries.pending.items()},
        "replication": {},
        "deduplicationStatus": "Disabled" if topic.admission.dedup.current is None else "Enabled",
        "topicCreationTimeStamp": topic.ledger.record.created_ms,
        "lastPublishTimeStamp": topic.admission.last_publish_ms,
        "topicEpoch": epoch if (epoch := topic.admission.producers.access.epoch) >= 0 else None,
        "ownerBroker": broker_id,
    }


def publisher_stats(producer: TopicProducer, now: float) -> Json:
    """Return the statistics of one producer at a time of the monotonic clock."""
    rate, throughput = producer.window.rates(now, producer.messages_in, producer.bytes_in)
    return {
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "averageMsgSize": producer.bytes_in / producer.messages_in if producer.messages_in else 0.0,
        "supportsPartialProducer": False,
        "producerName": producer.name,
        "producerId": producer.producer_id,
        "accessMode": producer.mode.value,
        "msgInCounter": producer.messages_in,
        "bytesInCounter": producer.bytes_in,
        "address": producer.channel.peer,
        "connectedSince": iso_time(producer.connected_ms),
        "clientVersion": producer.channel.client_version,
        "metadata": dict(producer.metadata),
    }


def storage_size(topic: BrokerTopic) -> int:
    """Return the payload bytes of all ledgers of a topic."""
    closed = stored_bytes(topic.ledger.record)
    is_counted = any(
        info.closed_ms and info.ledger_id == topic.ledger.writer.ledger_id for info in topic.ledger.record.ledgers
    )
    return closed + (0 if is_counted else topic.ledger.writer.length)


async def ledger_rows(ledger: ManagedLedger, after: int) -> AsyncIterator[Json]:
    """Yield the ledgers of a topic as ``TopicOperations.topic_ledgers`` describes them, from the newest one whose id is
    at most ``after`` on."""
    async for info in ledgers_after(ledger.record, after, ledger.read_piece):
        if info.ledger_id > ledger.chain.last_ledger_id:
            return  # the next ledger, not used yet
        is_open = not info.closed_ms
        yield {
            "ledger_id": info.ledger_id,
            "entries": ledger.chain.entries_in(info.ledger_id) if is_open else info.entries,
            "bytes": ledger.writer.length if is_open else info.size,
            "closed_ms": info.closed_ms,
        }


async def internal_stats(topic: BrokerTopic, ledgers: LedgersPort) -> Json:
    """Return Pulsar's ``internalStats``, with the ensembles of the newest ledgers."""
    chain, writer = topic.ledger.chain, topic.ledger.writer
    rows = []
    for info in topic.ledger.record.ledgers[-LEDGERS_PAGE_MAX:]:
        row: Json = {"ledgerId": info.ledger_id, "entries": info.entries, "size": info.size, "offloaded": False}
        if info.ledger_id == writer.ledger_id and not info.closed_ms:
            row |= {"entries": writer.last_add_confirmed + 1, "size": writer.length}
        try:
            metadata = (await ledgers.metadata(info.ledger_id)).record
        except NoSuchLedgerError:
            row |= {"state": "missing", "ensembles": []}
        else:
            row |= {
                "state": metadata.state.value,
                "ensembleSize": metadata.ensemble_size,
                "writeQuorum": metadata.write_quorum,
                "ackQuorum": metadata.ack_quorum,
                "ensembles": [
                    {"firstEntryId": segment.first_entry_id, "bookies": list(segment.bookies)}
                    for segment in metadata.segments
                ],
            }
        rows.append(row)
    return {
        "entriesAddedCounter": topic.ledger.entries_added,
        "numberOfEntries": chain.end - chain.first,
        "totalSize": storage_size(topic),
        "currentLedgerEntries": writer.last_add_confirmed + 1,
        "currentLedgerSize": writer.length,
        "lastConfirmedEntry": str(chain.position_before(chain.end)),
        "state": topic.ledger.state.value,
        "pendingAddEntriesCount": topic.ledger.pending,
        "openedMs": topic.opened_ms,
        "nowMs": wall_ms(),
        "ledgersTotal": ledger_count(topic.ledger.record),
        "ledgers": rows,
        "cursors": {name: cursor_stats(topic, s) for name, s in topic.subscriptions.items()},
    }


def cursor_stats(topic: BrokerTopic, subscription: Subscription) -> Json:
    chain, cursor, log = subscription.chain, subscription.cursor, subscription.log
    ranges: list[str] = []
    for first, stop in cursor.acknowledged_runs():
        if len(ranges) == RANGES_SHOWN_MAX:
            ranges.append("...")
            break
        if stop <= chain.first:  # trimmed away
            continue
        ranges.append(f"({chain.position_before(first)}..{chain.position_at(stop - 1)}]")
    return {
        "markDeletePosition": str(chain.position_before(cursor.mark)),
        "readPosition": str(chain.position_at(min(max(subscription.dispatcher.read_index, chain.first), chain.end))),
        "individuallyDeletedMessages": "[" + ",".join(ranges) + "]",
        "messagesConsumedCounter": subscription.messages_out,
        "cursorLedger": log.ledger_id if log is not None else -1,
        "cursorLedgerLastEntry": log.last_entry_id if log is not None else -1,
        "state": "Open" if log is not None else "NonDurable",
        "numberOfEntriesSinceFirstNotAckedMessage": max(chain.end - cursor.mark, 0),
        "totalNonContiguousDeletedMessagesRange": cursor.holes,
    }


def merged_stats(parts: dict[str, Json]) -> Json:
    """Return the statistics of a partitioned topic: the sums over its partitions, which are listed under
    ``partitions``."""
    merged: Json = {}
    subscriptions: dict[str, Json] = {}
    for stats in parts.values():
        _add_up(merged, stats)
        merged.setdefault("publishers", []).extend(stats["publishers"])
        for name, subscription in stats["subscriptions"].items():
            total = subscriptions.setdefault(
                name,
                {
                    "type": "",
                    "isDurable": subscription["isDurable"],
                    "consumersAfterMarkDeletePosition": {},
                    "consumers": [],
                },
            )
            _add_up(total, subscription)
            total["type"] = total["type"] or subscription["type"]
            total["consumers"].extend(subscription["consumers"])
    merged["averageMsgSize"] = merged["bytesInCounter"] / merged["msgInCounter"] if merged["msgInCounter"] else 0.0
    return {**merged, "subscriptions": subscriptions, "metadata": {"partitions": len(parts)}, "partitions": parts}


def _add_up(total: Json, more: Json) -> None:
    for name, value in more.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            total[name] = max(total.get(name, 0), value) if name in _LATEST else total.get(name, 0) + value

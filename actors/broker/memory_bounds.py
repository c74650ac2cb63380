"""Bounds of a broker's memory by holder; their sum is its budget (I15)."""

from __future__ import annotations

from heliograph.actors.broker.balance import orphan_sweep
from heliograph.actors.broker.compaction import compactor, plan
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.dedup import topic_dedup
from heliograph.actors.broker.limits.answers import (
    LIST_BYTES_MAX,
    LISTS_AT_ONCE_MAX,
    MATCHED_BYTES_MAX,
    SHOWN_BYTES_MAX,
)
from heliograph.actors.broker.limits.unpacking import UNPACKED_BYTES_MAX
from heliograph.actors.broker.managed_ledger.read_budget import READ_BUDGET_BYTES
from heliograph.actors.broker.records import broker_log
from heliograph.actors.broker.subscription.recovery import RECOVERIES_AT_ONCE_MAX
from heliograph.actors.broker.subscription.setting import COMPACTIONS_AT_ONCE_MAX
from heliograph.actors.broker.topic.topics import LOADS_AT_ONCE_MAX
from heliograph.actors.ledger.limits import WINDOWS_BYTES_MAX
from heliograph.base.guard.listener import UNSENT_TOTAL_BYTES_MAX

# Open topics, subscriptions, cursors and connections, which an operator's plan bounds: 12.5 kB for a topic with a
# producer, so 20,000 of them. A broker with more is above its budget, and says so.
TOPICS_BYTES = 256 << 20


def memory_bounds(config: BrokerConfig) -> dict[str, int]:
    """Return the bytes that a broker with these settings holds at most, by what holds them."""
    openings = LOADS_AT_ONCE_MAX * topic_dedup.REPLAY_BYTES_MAX
    recoveries = RECOVERIES_AT_ONCE_MAX * broker_log.READ_BYTES_MAX
    one_compaction = plan.KEY_BYTES_MAX + compactor.READ_BYTES_MAX + compactor.ADD_BYTES_IN_FLIGHT_MAX
    return {
        "tail cache": config.cache_bytes,
        "publishes that are not confirmed": config.publish_bytes_max,
        "entries that some bookie has not answered": WINDOWS_BYTES_MAX,
        "frames that are not complete": config.unfinished_bytes_max,
        "entries read ahead": READ_BUDGET_BYTES,
        "answers that clients do not read": UNSENT_TOTAL_BYTES_MAX,
        "answers of administration": SHOWN_BYTES_MAX + LISTS_AT_ONCE_MAX * LIST_BYTES_MAX,
        "topics that match patterns": MATCHED_BYTES_MAX,
        "payloads and schemas that are unpacked": UNPACKED_BYTES_MAX,
        "compactions": COMPACTIONS_AT_ONCE_MAX * one_compaction,
        "openings and recoveries of cursors": openings + recoveries,
        "the sweep for orphans": orphan_sweep.SEEN_BYTES_MAX,
        "topics, subscriptions and connections": TOPICS_BYTES,
    }

"""The budgets of memory: every setting of a part that is a number of bytes is counted, or said to be no memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.memory_bounds import memory_bounds as bookie_bounds
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.memory_bounds import memory_bounds as broker_bounds
from heliograph.base.guard.memory import PROCESS_BYTES, budget_of
from heliograph.gateway.config import RECEIVER_SHARE_LEAST, RECEIVERS_BYTES_MAX, GatewayConfig
from heliograph.gateway.sessions.receivers import ReceiverRoom
from tests.rules.source import ROOT

MIB = 1 << 20
HERE = Path("/nowhere")
BOOKIE = BookieConfig("bookie-1", (HERE,), (HERE,))
BROKER = BrokerConfig("broker-1")
GATEWAY = GatewayConfig()

Bounds = Callable[[Any], Mapping[str, int]]
PARTS: dict[str, tuple[Any, Bounds]] = {
    "bookie": (BOOKIE, bookie_bounds),
    "broker": (BROKER, broker_bounds),
    "gateway": (GATEWAY, lambda config: config.memory_bounds),
}
# Settings in bytes that bound no memory of their own, and why.
DISK, RATE, IN_ANOTHER = "of a disk", "a rate or a threshold", "of one thing, whose sum has a bound that is counted"
NO_MEMORY = {
    "bookie": {
        "journal_file_bytes": DISK,
        "entry_log_bytes": DISK,
        "headroom_bytes": DISK,
        "recovery_headroom_bytes": DISK,
        "compaction_headroom_bytes": DISK,
        "compaction_bytes_per_second": RATE,
        "scrub_bytes_per_second": RATE,
        "single_write_bytes": RATE,
        "read_ahead_bytes": IN_ANOTHER,
    },
    "broker": {
        "max_message_bytes": IN_ANOTHER,
        "connection_publish_bytes_max": IN_ANOTHER,
        "connection_write_bytes_max": IN_ANOTHER,
        "publish_bytes_per_second": RATE,
        "tenant_publish_bytes_per_second": RATE,
    },
    "gateway": {
        "max_message_bytes": IN_ANOTHER,
        "request_bytes_max": IN_ANOTHER,
        "producer_window_bytes": IN_ANOTHER,
        "receiver_bytes_max": IN_ANOTHER,
        "address_bytes_per_second": RATE,
        "role_bytes_per_second": RATE,
        "tenant_bytes_per_second": RATE,
    },
}


@pytest.mark.parametrize("part", PARTS)
def test_every_setting_in_bytes_is_counted_or_is_no_memory(part: str) -> None:
    config, bounds = PARTS[part]
    named = {field.name for field in fields(config) if "bytes" in field.name}
    counted = set()
    for name in named:
        default = getattr(config, name)
        more = replace(config, **{name: default + MIB}) if name not in NO_MEMORY[part] else config
        if sum(bounds(more).values()) > sum(bounds(config).values()):
            counted.add(name)
    assert named == counted | NO_MEMORY[part].keys()
    assert not counted & NO_MEMORY[part].keys()


@pytest.mark.parametrize("part", PARTS)
def test_the_capacity_page_has_the_budget_of_the_defaults(part: str) -> None:
    config, bounds = PARTS[part]
    budget = (PROCESS_BYTES + budget_of(bounds(config))) // MIB
    page = (ROOT / "docs/operations/capacity.md").read_text()
    assert f"| {part} | {budget:,} MiB |" in page
    for what in bounds(config):
        assert what in page, f"the page does not name {what!r}"


def test_what_consumers_request_ahead_fits_the_room_however_many_there_are() -> None:
    room = ReceiverRoom(16 * MIB)
    taken = [room.take() for _ in range(GATEWAY.rest_consumers_max + GATEWAY.websocket_sessions_max)]
    assert taken[0] == 16 * MIB
    assert min(taken) == RECEIVER_SHARE_LEAST
    assert sum(taken) <= RECEIVERS_BYTES_MAX + len(taken) * RECEIVER_SHARE_LEAST
    for size in taken:
        room.give_back(size)
    assert room.left == RECEIVERS_BYTES_MAX
    with room.taken() as size:
        assert room.left == RECEIVERS_BYTES_MAX - size + RECEIVER_SHARE_LEAST
    assert room.left == RECEIVERS_BYTES_MAX

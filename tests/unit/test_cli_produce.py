"""``helio produce``: where messages come from, and what goes with them. Against a fake broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from heliograph.cli import produce as command
from heliograph.errors import BadRequestError
from heliograph.protocol import entry as entries
from tests.unit.client_world import run, stored
from tests.unit.fake_broker import FakeBroker


def produced(capsys: pytest.CaptureFixture[str], *messages: str, **options: Any) -> tuple[FakeBroker, dict[str, Any]]:
    """What a broker got, and the object that was printed."""
    brokers = []

    async def scenario() -> None:
        async with FakeBroker() as broker:
            brokers.append(broker)
            await asyncio.to_thread(
                command.produce, "t", list(messages) or None, address=broker.url, as_json=True, **options
            )

    run(scenario())
    return brokers[0], json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path))


def test_arguments_and_files_are_published_in_order_and_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "one").write_bytes(b"two\nlines\xff")
    broker, shown = produced(capsys, "a", "b", files=[tmp_path / "one"], times=2)
    assert stored(broker.store) == [b"a", b"b", b"two\nlines\xff"] * 2
    assert (shown["topic"], shown["messages"]) == ("t", 6)


def test_key_properties_and_delay_go_with_each(capsys: pytest.CaptureFixture[str]) -> None:
    broker, _ = produced(capsys, "a", key="k", properties=["x=1"], deliver_after=3600.0)
    metadata, _ = entries.split(broker.store.topics["persistent://public/default/t"].entries[0])
    assert (metadata.partition_key, metadata.properties[0].key, metadata.properties[0].value) == ("k", "x", "1")
    assert metadata.deliver_at_time > metadata.publish_time


def test_what_cannot_be_repeated_or_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="--times"):
        command.produce("t", None, times=2)
    with pytest.raises(BadRequestError, match="cannot be read"):
        command.produce("t", None, files=[tmp_path / "none"])

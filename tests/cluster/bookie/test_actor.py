"""The actor class as it is, without Ray around it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import ClassVar

import pytest

from heliograph.actors.bookie import actor as actor_module
from heliograph.actors.bookie.actor import BookieActor
from heliograph.actors.bookie.cookies import stored_cookie
from heliograph.actors.bookie.start_failure import last_failure
from heliograph.actors.errors import CookieMismatchError
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.metadata import paths
from heliograph.metadata.bookie_records import BookieReplacement
from heliograph.metadata.codec import encode
from heliograph.metadata.connect import connect_store
from heliograph.metrics.bookie import BOOKIE_METRICS
from heliograph.metrics.metric import read_from
from tests.cluster.support.bookie_peer import BookiePeer, small_config
from tests.waits import until


class RecordingGauge:
    """Stands in for Ray's gauge, which needs a cluster."""

    values: ClassVar[dict[str, tuple[float, dict[str, str]]]] = {}

    def __init__(self, name: str, tag_keys: tuple[str, ...]) -> None:
        self._name = name

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[self._name] = (value, tags)


async def test_its_statistics_are_metrics_and_some_go_through_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_module, "Gauge", RecordingGauge)
    monkeypatch.setattr(actor_module, "METRICS_SECONDS", 0.01)
    actor = BookieActor(small_config(tmp_path), f"memory://{tmp_path.name}")
    peer = await BookiePeer.connect(await actor.start())
    assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
    await until(lambda: RecordingGauge.values.get("heliograph_bookie_is_registered") == (1.0, {"bookie": "b1"}))
    assert set(RecordingGauge.values) == {metric.name for metric in BOOKIE_METRICS if metric.is_rays}
    told = read_from(BOOKIE_METRICS, await actor.statistics(), "b1")
    assert told.keys() == {metric.name for metric in BOOKIE_METRICS}
    assert told["heliograph_bookie_entries_added_total"] == [(("b1",), 1)]
    peer.close()
    await actor.stop()


async def test_it_starts_once_serves_and_leaves(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    actor = BookieActor(small_config(tmp_path, rack="r1"), url)
    assert repr(actor) == "Bookie(b1@r1)"
    assert await actor.address() == ""
    assert await actor.statistics() == {}
    addresses = await asyncio.gather(actor.start(), actor.start())
    assert addresses[0] == addresses[1] == await actor.address()
    peer = await BookiePeer.connect(addresses[0])
    assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
    statistics = await actor.statistics()
    assert statistics["entries_added"] == 1
    assert statistics.keys() - {"bookie_id", "address"} == {metric.key for metric in BOOKIE_METRICS}
    store = await connect_store(url)
    assert await store.exists(paths.bookie_available("b1")) is not None
    peer.close()
    await actor.stop()
    await actor.stop()
    assert await store.exists(paths.bookie_available("b1")) is None
    await store.close()
    again = BookieActor(small_config(tmp_path, rack="r1"), url)
    peer = await BookiePeer.connect(await again.start())
    assert await peer.status(BookieOp.READ, 1, 0) is Status.OK
    peer.close()
    await again.stop()


async def test_a_start_that_fails_leaves_its_reason_and_the_next_ones_wait(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    actor = BookieActor(small_config(tmp_path), url)
    await actor.start()
    await actor.stop()
    shutil.rmtree(tmp_path / "data")
    store = await connect_store(url)
    for number in (1, 2):
        with pytest.raises(CookieMismatchError):
            await BookieActor(small_config(tmp_path), url).start()
        found = await last_failure(store, "b1")
        assert found is not None
        assert (found.error, found.failures) == ("CookieMismatchError", number)
        assert "misses data directory" in found.reason
    cookie = (await stored_cookie(store, "b1")).cookie
    assert cookie is not None
    permission = BookieReplacement("b1", cookie.start)
    await store.create(paths.bookie_replacement("b1"), encode(permission), parents=True)
    actor = BookieActor(small_config(tmp_path), url)
    await actor.start()
    assert await last_failure(store, "b1") is None
    assert await store.exists(paths.bookie_replacement("b1")) is None
    await actor.stop()
    await store.close()

"""The actor class as it is, without Ray around it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from actors.bookie.actor import BookieActor
from actors.bookie.statistics import GAUGES
from actors.wire.messages import Op, Status
from metadata import paths
from metadata.connect import connect_store
from tests.cluster.bookie_peer import BookiePeer, small_config


def test_it_starts_once_serves_and_leaves(tmp_path: Path) -> None:
    async def scenario() -> None:
        url = f"memory://{tmp_path.name}"
        actor = BookieActor(small_config(tmp_path, rack="r1"), url)
        assert repr(actor) == "Bookie(b1@r1)"
        assert await actor.address() == ""
        assert await actor.statistics() == {}
        addresses = await asyncio.gather(actor.start(), actor.start())
        assert addresses[0] == addresses[1] == await actor.address()
        assert await actor.pid() == os.getpid()
        peer = await BookiePeer.connect(addresses[0])
        assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
        statistics = await actor.statistics()
        assert statistics["entries_added"] == 1
        assert set(GAUGES) <= set(statistics)
        store = await connect_store(url)
        assert await store.exists(paths.bookie_available("b1")) is not None
        peer.close()
        await actor.stop()
        await actor.stop()
        assert await store.exists(paths.bookie_available("b1")) is None
        await store.close()
        again = BookieActor(small_config(tmp_path, rack="r1"), url)
        peer = await BookiePeer.connect(await again.start())
        assert await peer.status(Op.READ, 1, 0) is Status.OK
        peer.close()
        await again.stop()

    asyncio.run(scenario())

"""What bookies that do not start tell: their reason, the others that have it, and that they do not serve."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heliograph.actors.bookie.actor import BookieActor
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.start_failure import all_failures, last_failure
from heliograph.actors.errors import JournalCorruptError
from heliograph.metadata import codec, paths
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import BookieRegistration
from tests.cluster.support.bookie_peer import small_config

BOOKIES = ("b1", "b2", "b3")
LOSS = "accept_storage_loss"


def config_of(home: Path, name: str) -> BookieConfig:
    folder = home / name
    return small_config(
        home, bookie_id=name, journal_directories=(folder / "journal",), data_directories=(folder / "data",)
    )


async def lose_journal(config: BookieConfig, url: str) -> None:
    actor = BookieActor(config, url)
    await actor.start()
    await actor.stop()
    for path in config.journal_directories[0].glob("*.journal"):
        path.unlink()


async def refusal(config: BookieConfig, url: str) -> str:
    with pytest.raises(JournalCorruptError) as caught:
        await BookieActor(config, url).start()
    return str(caught.value)


async def test_bookies_that_refuse_for_one_reason_name_each_other_and_offer_no_loss(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    store = await connect_store(url)
    configs = [config_of(tmp_path, name) for name in BOOKIES]
    for config in configs:
        await lose_journal(config, url)
    alone = await refusal(configs[0], url)
    assert "which is missing" in alone
    assert LOSS in alone, "one damaged bookie is repaired from the others"
    for config, others in ((configs[1], "b1"), (configs[2], "b1, b2"), (configs[0], "b2, b3")):
        said = await refusal(config, url)
        assert f"{others} did not start for the same reason (JournalCorruptError)" in said
        assert LOSS not in said
        assert "keep all directories" in said
    failures = await all_failures(store)
    assert [failure.bookie_id for failure in failures] == list(BOOKIES)
    assert all(LOSS not in failure.explain(failures) for failure in failures), "helio status says the same"
    first = await last_failure(store, "b1")
    assert first is not None
    assert first.failures == 2
    await store.close()


@pytest.mark.parametrize("is_alive", [False, True], ids=["dead", "alive"])
async def test_a_bookie_that_refuses_ends_the_session_of_a_process_that_is_dead(tmp_path: Path, is_alive: bool) -> None:
    url, config, path = f"memory://{tmp_path.name}", config_of(tmp_path, "b1"), paths.bookie_available("b1")
    await lose_journal(config, url)
    predecessor, store = await connect_store(url), await connect_store(url)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    record = BookieRegistration("b1", f"127.0.0.1:{port}", session_token=predecessor.session_token)
    await predecessor.create(path, codec.encode(record), ephemeral=True, parents=True)
    if not is_alive:
        server.close()
        await server.wait_closed()
    await refusal(config, url)
    assert (await store.exists(path) is not None) is is_alive
    assert await last_failure(store, "b1") is not None
    server.close()
    await server.wait_closed()
    await store.close()
    if is_alive:
        await predecessor.close()

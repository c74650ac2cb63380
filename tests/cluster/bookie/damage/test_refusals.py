"""Bookies that do not start for the same reason say so, and none of them offers the loss of its data as a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.actors.bookie.actor import BookieActor
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.start_failure import all_failures, last_failure
from heliograph.actors.errors import JournalCorruptError
from heliograph.metadata.connect import connect_store
from tests.cluster.support.bookie_peer import small_config

BOOKIES = ("b1", "b2", "b3")
LOSS = "accept_storage_loss"


def config_of(home: Path, name: str) -> BookieConfig:
    folder = home / name
    return small_config(
        home, bookie_id=name, journal_directories=(folder / "journal",), data_directories=(folder / "data",)
    )


async def refusal(config: BookieConfig, url: str) -> str:
    with pytest.raises(JournalCorruptError) as caught:
        await BookieActor(config, url).start()
    return str(caught.value)


async def test_bookies_that_refuse_for_one_reason_name_each_other_and_offer_no_loss(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    store = await connect_store(url)
    configs = [config_of(tmp_path, name) for name in BOOKIES]
    for config in configs:
        actor = BookieActor(config, url)
        await actor.start()
        await actor.stop()
        for path in config.journal_directories[0].glob("*.journal"):
            path.unlink()
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

"""Tasks of repair in metadata: marks, versions and locks."""

from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise


async def test_marking_is_idempotent_and_merges() -> None:
    store = MemoryServer().open_session()
    await initialise(store)
    tasks = UnderReplication(store)
    assert await tasks.mark(5, ["b"])
    assert not await tasks.mark(5, ["b"])
    assert await tasks.mark(5, ["a"])
    found = await tasks.task(5)
    assert found is not None
    assert found.record.missing_bookies == ("a", "b")
    assert await tasks.tasks() == [5]


async def test_a_task_that_grew_is_not_finished_by_its_old_version() -> None:  # I9
    store = MemoryServer().open_session()
    await initialise(store)
    tasks = UnderReplication(store)
    await tasks.mark(5, ["a"])
    read = await tasks.task(5)
    assert read is not None
    await tasks.mark(5, ["b"])
    assert not await tasks.finish(5, read.version)
    again = await tasks.task(5)
    assert again is not None
    assert await tasks.finish(5, again.version)
    assert await tasks.finish(5, again.version)
    assert await tasks.tasks() == []


async def test_a_lock_excludes_other_sessions_and_falls_with_its_own() -> None:
    server = MemoryServer()
    one, two = server.open_session(), server.open_session()
    await initialise(one)
    assert await UnderReplication(one).lock(5)
    assert await UnderReplication(one).lock(5)
    assert not await UnderReplication(two).lock(5)
    server.expire_session(one.session_id)
    assert await UnderReplication(two).lock(5)

"""Sessions that are taken over with their token, on every backend that a URL names."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.store import Set
from tests.contracts.metadata.backends import EmbeddedBackend
from tests.contracts.metadata.etcd_backend import EtcdBackend
from tests.contracts.metadata.zookeeper_server import missing, shared_server
from tests.waits import until

Scenario = Callable[[str], Awaitable[None]]
ZOOKEEPER = pytest.param("zookeeper", marks=[pytest.mark.skip(missing())] if missing() else [])


@pytest.fixture(params=["memory", "embedded", "etcd", ZOOKEEPER])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    root = uuid.uuid4().hex
    if request.param == "embedded":
        server = EmbeddedBackend(tmp_path)
        await server.start()
        yield f"embedded://{server.server.address}/{root}"
        await server.stop()
    elif request.param == "etcd":
        yield EtcdBackend(tmp_path).url
    else:
        yield f"memory://{root}" if request.param == "memory" else f"zk://{shared_server().address}/{root}"


async def test_a_session_that_was_left_is_taken_over_with_its_ephemerals(url: str) -> None:
    first = await connect_store(url, session_timeout_ms=4_000, token="")
    await first.create("/e", b"v", ephemeral=True)
    session_id, token = first.session_id, first.session_token
    await first.detach()
    await first.detach()
    with pytest.raises(SessionExpiredError):
        await first.get("/e")
    second = await connect_store(url, session_timeout_ms=4_000, token=token)
    assert (second.session_id, second.session_token) == (session_id, token)
    await first.close()  # no longer its session
    stat = await second.set("/e", b"w")
    assert stat.ephemeral_owner == session_id
    third = await connect_store(url, session_timeout_ms=4_000, token=token)
    await third.multi([Set("/e", b"x")])
    with pytest.raises((SessionExpiredError, ConnectionLossError)):
        await second.set("/e", b"late")
    assert (await third.get("/e"))[0] == b"x"
    await third.close()
    with pytest.raises(SessionExpiredError):
        await connect_store(url, session_timeout_ms=4_000, token=token)
    other = await connect_store(url)
    assert await other.exists("/e") is None
    await second.detach()
    await other.close()


async def test_a_session_that_was_left_ends_at_its_timeout(url: str) -> None:
    first, other = await connect_store(url, session_timeout_ms=2_000, token=""), await connect_store(url)
    await first.create("/e", b"v", ephemeral=True)
    gone: list[object] = []
    await other.get("/e", gone.append)
    await first.detach()
    await until(lambda: bool(gone))
    with pytest.raises(SessionExpiredError):
        await connect_store(url, token=first.session_token)
    await other.close()

"""Each part serves its metrics at a port of its own, and a file names all that do."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.auth.config import AuthConfig
from heliograph.base.errors import ServiceNotReadyError
from heliograph.base.guard.handshake import new_secret
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.peer import ListenAddress
from heliograph.base.settings import restored
from heliograph.client import discovery
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import boards
from heliograph.cluster.head.boards import give_boards_to_ray
from heliograph.cluster.head.watch_files import TARGETS_FILE, keep_files, targets_text
from heliograph.cluster.hosting import hosted
from heliograph.cluster.logs.setup import shared_part
from heliograph.cluster.operator.actor import OperatorActor, OperatorArguments, PackedCall
from heliograph.cluster.operator.operator import OperatorSettings
from heliograph.cluster.operator.planning import OperatorRules
from heliograph.cluster.operator.ports import PartFacts
from heliograph.cluster.operator.reporting import Watching
from heliograph.cluster.ports import Machine, pick_free
from heliograph.cluster.watch import door as doors
from heliograph.cluster.watch.config import LAST_OFFSET, OFFSETS, WatchConfig, WatchFiles
from heliograph.cluster.watch.door import MetricsDoor
from heliograph.cluster.watch.part_metrics import open_door
from heliograph.metadata.backends.embedded.actor import MetadataActor, StoreAccess
from heliograph.metadata.connect import connect_store
from heliograph.metadata.credentials import with_secrets
from heliograph.metadata.recipes.revoked_tokens import revoke
from heliograph.metrics.exposition import samples_in
from heliograph.monitoring.boards import BOARDS
from tests.unit.auth.keys import SECRET, token

HERE = "127.0.0.1"
AUTH = AuthConfig(enabled=True, token_secret_key=base64.b64encode(SECRET).decode(), superuser_roles=("prometheus",))


class Part:
    """A broker as far as its door asks it."""

    def __init__(self) -> None:
        self.asks = 0
        self.failure: Exception | None = None

    async def statistics(self) -> dict[str, Any]:
        self.asks += 1
        if self.failure is not None:
            raise self.failure
        return {"topics": 7, "of_a_minute": {"publish_latency": [0.0] * 13, "entry_bytes": [0.0] * 10}}

    async def asked(self, method: str, arguments: Any) -> dict[str, Any]:
        return {"series": {"heliograph_namespace_topics": [(("t/n",), 7)]}, "topics_hidden": 3}


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., Any]]:
    made: list[MetricsDoor] = []

    async def open_one(actor: Any, **options: Any) -> MetricsDoor:
        config = WatchConfig(HERE, pick_free() - 1, cluster="c", **options)
        door = await open_door("broker-1", actor, config, ListenAddress(HERE))
        assert door is not None
        made.append(door)
        return door

    yield open_one
    for door in made:
        await door.close()


async def ask(door: MetricsDoor, target: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, bytes]:
    host, _, port = door.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    sent = {"Host": f"{host}:{port}"} | headers
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b"X-Content-Type-Options: nosniff" in head
    if b"Content-Encoding: gzip" in head:
        body = gzip.decompress(body)
    return int(head.split()[1]), body


async def answered(reader: asyncio.StreamReader) -> bytes:
    """Return what a listener sends before it closes the connection, in good order or not."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_a_part_serves_its_own_metrics_and_those_by_pulsars_names(opened: Any) -> None:
    door = await opened(Part())
    status, body = await ask(door)
    assert status == 200
    assert b'heliograph_broker_topics{broker="broker-1"} 7' in body
    assert b'heliograph_namespace_topics{namespace="t/n"} 7' in body
    assert (await ask(door, **{"Accept-Encoding": "gzip"})) == (200, body)
    status, body = await ask(door, "/metrics?names=pulsar")
    assert b'pulsar_topics_count{cluster="c",job="broker",kubernetes_pod_name="broker-1",namespace="t/n"} 7' in body
    assert b"heliograph_" not in body


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        ("/", "GET", 404),
        ("/metrics", "POST", 405),
        ("/metrics?names=kafka", "GET", 400),
        ("/metrics/x", "GET", 404),
        ("//[", "GET", 400),
    ],
)
async def test_it_serves_nothing_else(opened: Any, target: str, method: str, status: int) -> None:
    assert (await ask(await opened(Part()), target, method))[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:9401"}, 421),
        ({"Host": "evil.example@127.0.0.1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "localhost:9401", "Sec-Fetch-Site": "none"}, 200),
        ({"Host": f"{socket.gethostname()}:9401"}, 200),
        ({"Host": "[::1]:9401"}, 200),
        ({"Host": "10.0.0.7:9401"}, 200),
    ],
)
async def test_a_page_of_elsewhere_reads_nothing(opened: Any, headers: dict[str, str], status: int) -> None:
    found, body = await ask(await opened(Part()), **headers)
    assert (found, b"heliograph_broker_topics" in body) == (status, status == 200)


async def test_names_that_the_gateway_is_allowed_are_taken_too(opened: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"home": tmp_path, "gateway": {"allowed_hosts": ["*.pulsar.example.org"]}}
    hosts = ClusterConfig(**settings).watch_config("").allowed_hosts
    door = await opened(Part(), allowed_hosts=hosts)
    for host, status in (("b1.pulsar.example.org:9401", 200), ("pulsar.example.com:9401", 421)):
        assert (await ask(door, Host=host))[0] == status


async def test_many_scrapers_cost_no_more_than_one(opened: Any) -> None:
    part = Part()
    door = await opened(part)
    answers = await asyncio.gather(*(ask(door) for _ in range(10)))
    assert {status for status, _ in answers} == {200}
    assert part.asks == 1


async def test_a_part_that_cannot_tell_answers_503_and_a_bug_500(opened: Any) -> None:
    part = Part()
    door = await opened(part)
    for failure, status in ((ServiceNotReadyError("it starts"), 503), (ZeroDivisionError(), 500)):
        part.failure = failure
        assert (await ask(door))[0] == status


async def test_with_authentication_it_wants_a_superuser(opened: Any) -> None:
    door = await opened(Part(), auth=AUTH)
    assert (await ask(door))[0] == 401
    assert (await ask(door, Authorization="Bearer nonsense"))[0] == 401
    assert (await ask(door, Authorization=f"Bearer {token('someone').decode()}"))[0] == 403
    assert (await ask(door, Authorization=f"Bearer {token('prometheus').decode()}"))[0] == 200


async def test_a_revoked_token_is_refused_as_at_every_door(opened: Any) -> None:
    url = f"memory://{os.urandom(8).hex()}"
    store = await connect_store(url)
    await revoke(store, "lost", None)
    door = await opened(Part(), auth=AUTH, metadata_url=url)
    lost, good = (f"Bearer {token('prometheus', jti=name).decode()}" for name in ("lost", "good"))
    async with asyncio.timeout(60):
        while (await ask(door, Authorization=good))[0] == 503:
            pass  # the list is read in the background
        assert (await ask(door, Authorization=lost))[0] == 401
        assert (await ask(door, Authorization=good))[0] == 200
        await revoke(store, "good", None)
        while (await ask(door, Authorization=good))[0] != 401:
            pass
    await store.close()


async def test_while_revoked_tokens_are_not_known_none_is_taken(opened: Any) -> None:
    door = await opened(Part(), auth=AUTH, metadata_url=f"embedded://{HERE}:{pick_free()}")
    status, body = await ask(door, Authorization=f"Bearer {token('prometheus').decode()}")
    assert (status, body) == (503, b"which tokens were revoked is not known yet\n")


async def test_connections_and_their_requests_are_bounded(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "CONNECTIONS_MAX", 1)
    door = await opened(Part())
    port = int(door.url.rpartition(":")[2])
    _, held = await asyncio.open_connection(HERE, port)
    await asyncio.sleep(0)
    reader, refused = await asyncio.open_connection(HERE, port)
    assert await answered(reader) == b""
    for writer in (held, refused):
        writer.close()
    monkeypatch.setattr(doors, "CONNECTIONS_MAX", 16)
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * doors.HEAD_BYTES_MAX)
    assert await answered(reader) == b""
    writer.close()
    assert (await ask(door))[0] == 200


async def test_a_taken_port_is_replaced_and_the_part_goes_on(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HERE, 0)) as taken:
        config = WatchConfig(HERE, taken.getsockname()[1] - 1)
        door = await open_door("broker-1", Part(), config, ListenAddress(HERE))
        assert door is not None
        assert not door.url.endswith(f":{taken.getsockname()[1]}")
        assert (await ask(door))[0] == 200
        await door.close()
    unusable = await open_door("broker-1", Part(), WatchConfig("192.0.2.1", 9_400), ListenAddress("192.0.2.1"))
    assert unusable is None


async def test_the_metadata_store_and_the_operator_have_doors_too(tmp_path: Path) -> None:
    secret, base = new_secret(), pick_free() - 3_001
    actor = MetadataActor(str(tmp_path), ListenAddress(HERE), access=StoreAccess(secret))
    config = WatchConfig(HERE, base, auth=AUTH)  # at the first start of a cluster, no address of its store is known
    door = await open_door("metadata", actor, config, ListenAddress(HERE))
    arguments = OperatorArguments("n", "", 1_000, OperatorSettings("o", OperatorRules(), (), 2, 1.0), PackedCall())
    other = await open_door("operator", OperatorActor(arguments), config, ListenAddress(HERE))
    assert door is not None
    assert other is not None
    store = await connect_store(with_secrets(f"embedded://{await actor.address()}", secret))
    await revoke(store, "lost", None)
    lost, good = (f"Bearer {token('prometheus', jti=name).decode()}" for name in ("lost", "good"))
    async with asyncio.timeout(60):
        while (await ask(door, Authorization=lost))[0] != 401:
            pass  # the list is read in the background, from the store itself
    status, body = await ask(door, Authorization=good)
    assert status == 200
    found = {name: value for name, labels, value in samples_in(body.decode()) if labels.get("part") == "metadata"}
    assert found["heliograph_metadata_sessions"] >= 1
    assert found["heliograph_metadata_commit_latency_seconds_count"] == found["heliograph_metadata_commits_total"] > 0
    status, body = await ask(other, Authorization=good)
    assert (status, b'heliograph_operator_is_leader{part="operator"} 0' in body) == (200, True)
    await store.close()
    for each in (door, other):
        await each.close()
    await actor.stop()


def test_each_part_has_a_port_and_no_two_have_one() -> None:
    config = WatchConfig(HERE, 9_400)
    alone = ("auditor", "metadata", "operator")
    names = [*alone, *(f"{kind}-{number}" for kind in OFFSETS for number in range(1, 1_000) if kind not in alone)]
    ports = [config.port_of(name) for name in names]
    assert len({*ports}) == len(names)
    assert max(ports) == 9_400 + LAST_OFFSET
    assert [config.port_of(name) for name in ("broker-3", "bookie-2", "replicator-1")] == [9_403, 10_402, 11_401]
    assert [config.port_of(name) for name in ("metadata", "operator")] == [12_400, 12_401]
    assert config.port_of("gateway") == config.port_of("metadata-2") == 0  # a member of etcd has an exporter of its own
    assert WatchConfig(HERE, 0).port_of("broker-1") == 0


PARTS = {
    "broker-1": ("http://10.0.0.1:9401", "10.0.0.1"),
    "gateway": ("https://10.0.0.2:8080", "10.0.0.2"),
    "metadata": ("", "10.0.0.1"),
}


def test_the_list_of_targets_is_what_prometheus_reads(tmp_path: Path) -> None:
    broker, gateway = json.loads(targets_text("c", PARTS))
    assert broker["targets"] == ["10.0.0.1:9401"]
    labels = {"cluster": "c", "component": "broker", "name": "broker-1", "node": "10.0.0.1", "__scheme__": "http"}
    assert broker["labels"] == labels
    assert (gateway["labels"]["__scheme__"], gateway["labels"]["__param_parts"]) == ("https", "none")


def test_boards_are_written_again_when_ray_has_removed_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ray" / "r" / "session_latest" / "metrics" / "grafana" / "dashboards"
    folder.mkdir(parents=True)
    ClusterHome(tmp_path).save(ClusterState("n", "127.0.0.1:1", "t", ray_temporary_directory=str(tmp_path / "ray")))
    keep_files(str(tmp_path), "[]\n")
    assert (tmp_path / TARGETS_FILE).read_text() == "[]\n"
    assert len(list(folder.iterdir())) == len(BOARDS)
    before = os.stat(tmp_path / TARGETS_FILE).st_mtime_ns
    monkeypatch.setattr(boards, "write_boards", lambda folder: pytest.fail("nothing is missing"))
    keep_files(str(tmp_path), "[]\n")
    assert os.stat(tmp_path / TARGETS_FILE).st_mtime_ns == before
    monkeypatch.undo()
    next(folder.iterdir()).unlink()
    keep_files(str(tmp_path), "[1]\n")
    assert len(list(folder.iterdir())) == len(BOARDS)
    assert (tmp_path / TARGETS_FILE).read_text() == "[1]\n"
    assert give_boards_to_ray(str(tmp_path / "ray"), only_missing=True) == []


async def test_the_operator_keeps_the_files_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "is_attached", lambda: True)
    monkeypatch.setattr(discovery, "own_address", lambda: "10.0.0.1")
    calls: list[tuple[Any, ...]] = []

    async def on_node(address: str, function: Any, *arguments: Any) -> None:
        calls.append((address, function, *arguments))
        raise ServiceNotReadyError("the node is away")

    def facts(**addresses: str) -> dict[str, PartFacts]:
        return {name: PartFacts("1", "10.0.0.1", metrics_address=url) for name, url in addresses.items()}

    async def looked(watching: Watching, **addresses: str) -> None:
        watching.look(facts(**addresses))
        assert watching._task is not None
        await watching._task

    here = Watching(SimpleNamespace(on_node=on_node), WatchFiles(str(tmp_path), "10.0.0.1", "c"))
    await looked(here, auditor="http://10.0.0.1:9400")
    assert "10.0.0.1:9400" in (tmp_path / TARGETS_FILE).read_text()
    (tmp_path / TARGETS_FILE).unlink()
    await looked(here, auditor="http://10.0.0.1:9400")
    assert not (tmp_path / TARGETS_FILE).exists(), "nothing changed, and no minute has passed"
    here._due = 0.0
    await looked(here, auditor="http://10.0.0.1:9400")
    assert (tmp_path / TARGETS_FILE).exists()
    there = Watching(SimpleNamespace(on_node=on_node), WatchFiles(str(tmp_path), "10.0.0.9", "c"))
    await looked(there, auditor="http://10.0.0.1:9400")
    [(address, function, home, text)] = calls
    assert (address, function, home) == ("10.0.0.9", keep_files, str(tmp_path))
    assert "10.0.0.1:9400" in text
    Watching(SimpleNamespace(on_node=on_node), None).look(facts())
    await here.stop()
    await there.stop()


class StartedPart(Part):
    """The same with a life."""

    async def start(self) -> str:
        return "here"

    async def stop(self) -> None:
        pass


async def test_a_hosted_part_has_its_door_from_its_start_to_its_stop() -> None:
    shared = shared_part.set("broker-1")  # as in a process that it does not have alone: nothing of this one changes
    try:
        made = hosted(StartedPart, restored, part="broker-1", watch=WatchConfig(HERE, pick_free() - 1))()
        await made.start()
        await made._hosted_opening
        door = made._hosted_door
        assert (await made.part_facts())["metrics_address"] == door.url
        status, body = await ask(door)
        assert (status, b'heliograph_broker_topics{broker="broker-1"} 7' in body) == (200, True)
        await made.stop()
        with pytest.raises(OSError, match=r"."):
            await ask(door)
        assert (await made.part_facts())["metrics_address"] == ""
        without = hosted(StartedPart, restored, part="broker-1")()
        await without.start()
        assert (await without.part_facts())["metrics_address"] == ""
    finally:
        shared_part.reset(shared)


async def test_the_address_of_a_door_is_that_of_the_parts_node() -> None:
    machine = Machine("10.0.0.7", "seven")
    at = machine.listening(ListenAddress("node", 9_400, 9_400), "k")
    assert (at.host, at.port, at.advertised_host) == ("10.0.0.7", 9_400, "10.0.0.7")

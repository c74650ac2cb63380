"""A hostile user of the same machine, and a hostile tenant, against clusters of ``helio up``: they get nothing.

The attacks of the user run in a child process of another user, those of the tenant (``tests/tenant.py``) by the doors
of brokers that ask for a token. The attacks on ``heliograph.local`` and ``helio dev`` are in
``tests/unit/cluster/test_stranger.py`` and ``tests/unit/standalone/test_secure.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import heliograph
from heliograph.actors.wire.frame import encode_request
from heliograph.actors.wire.greeting import hello
from heliograph.actors.wire.messages import BookieOp, BookieRequest
from heliograph.auth.issuing import SECRET_KEY_FILE, new_token
from heliograph.base.guard.local_socket import socket_name
from heliograph.base.guard.watchdog import STUCK_SECONDS_VARIABLE
from heliograph.base.home import ADMIN_TOKEN_FILE, ClusterHome
from heliograph.client import discovery
from heliograph.cluster.doctor import secrecy, stranger
from heliograph.cluster.doctor.stranger import Attempt, PartDoor
from heliograph.metadata.backends.embedded.protocol import (
    MAGIC,
    EmbeddedOp,
    encode_frame,
    encode_operation,
    greeting_version,
)
from heliograph.metadata.connect import connect_store
from heliograph.metadata.store import Create
from tests import tenant
from tests.cluster.support.live_cluster import LiveCluster, start, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to attack as another user"),
]

PAYLOAD = b"not for strangers"
MARK = "/namespaces/stranger"  # what the attack writes into the metadata
LEDGERS = 40  # that the attack tries to read
ENTRIES = 3
# The watchdog ends a part whose loop is held longer, which counts as a start; on an idle machine a second would do.
HELD_SECONDS_MAX = "10"
START_SECONDS_MAX = 300.0
BYSTANDER = "persistent://public/default/bystander"


# How ``helio up`` starts clusters; those that differ little are in the full run.
KINDS: dict[str, dict[str, Any]] = {
    "apart": {"parts": "apart"},
    "secure": {"secure": True, "lean": True, "broker_tls_port": 0},
    "secure-apart": {"secure": True, "parts": "apart", "broker_tls_port": 0},
    "together": {"parts": "together"},
    "lean": {"lean": True},
    "etcd": {"secure": True, "lean": True, "broker_tls_port": 0, "metadata_kind": "etcd"},
}
IN_EACH_RUN = ("apart", "secure")


@pytest.fixture(
    scope="module",
    params=[kind if kind in IN_EACH_RUN else pytest.param(kind, marks=pytest.mark.full) for kind in KINDS],
)
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A cluster with a message."""
    discovery.detach()  # from the Ray of other tests, which ``start`` would use
    home = tmp_path_factory.mktemp("attacked")
    for folder in (home, *home.parents[:3]):  # pytest's own folders would keep the stranger out
        if folder.stat().st_uid == os.geteuid() and folder != Path("/tmp"):
            folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        if "secure" in KINDS[request.param]:
            patch.setenv(STUCK_SECONDS_VARIABLE, HELD_SECONDS_MAX)
        running = start(home, f"attacked-{uuid.uuid4().hex[:8]}", bookies=3, **KINDS[request.param])
    try:
        with administrator_of(running) as client, client.producer("private") as made:
            made.send(PAYLOAD)
        yield running
    finally:
        running.stop()


def administrator_of(cluster: LiveCluster) -> heliograph.Client:
    own = {"token_file": str(cluster.home / ADMIN_TOKEN_FILE), "tls_ca_file": cluster.state.tls_ca_file}
    return heliograph.connect(namespace=cluster.namespace, **(own if cluster.config.secure else {}))


def doors_of(cluster: LiveCluster) -> list[PartDoor]:
    found = secrecy.doors_of(cluster.state, cluster.report())
    assert {door.kind for door in found} >= {store_of(cluster), "bookie", "broker"}
    return found


def store_of(cluster: LiveCluster) -> str:
    """Return the kind of the doors of the metadata store."""
    return "etcd" if cluster.config.metadata_kind == "etcd" else "metadata"


def as_stranger(work: Callable[[], str]) -> str:
    """Run an attack as another user, and return what it got."""
    [got] = stranger._as_nobody(lambda: [Attempt("", "", "", given=work())])
    return got.given


def said_at(door: PartDoor, request: bytes) -> bytes:
    """Return all that a door answers to bytes."""
    heard = b""
    with suppress(OSError), stranger._connected(door, None) as connection:
        connection.sendall(request)
        while data := connection.recv(1 << 20):
            heard += data
    return heard


def test_doctors_own_stranger_gets_nothing_behind_the_brokers(attacked: LiveCluster) -> None:
    uid, found = stranger.attempts(doors_of(attacked), secrecy.files_of(attacked.state, home_of(attacked)))
    assert uid == stranger.NOBODY
    is_secure = attacked.config.secure
    given = {each.kind for each in found if each.given}
    assert given == (set() if is_secure else {"broker", "gateway"}), found
    reached = {each.kind for each in found if each.given or each.refusal}
    assert reached >= {store_of(attacked), "bookie", "broker", "gateway", "file"}
    judged = {one.check: one for one in secrecy.judge_attempts(uid, found, is_authenticated=is_secure)}
    assert {name: one.severity.value for name, one in judged.items()} == dict.fromkeys(
        ("doors", "callers") if is_secure else ("doors",), "ok"
    )


def home_of(cluster: LiveCluster) -> ClusterHome:
    return ClusterHome(cluster.home)


def test_no_message_is_read_from_a_bookie(attacked: LiveCluster) -> None:
    reads = [
        encode_request(BookieRequest(BookieOp.READ, 1 + ledger * ENTRIES + entry, ledger, entry))
        for ledger in range(LEDGERS)
        for entry in range(ENTRIES)
    ]
    bookies = [door for door in doors_of(attacked) if door.kind == "bookie"]
    request = encode_request(hello()) + b"".join(reads)
    heard = as_stranger(lambda: repr([said_at(door, request) for door in bookies]))
    assert PAYLOAD.decode() not in heard


def test_no_right_is_written_into_the_metadata(attacked: LiveCluster) -> None:
    if store_of(attacked) == "etcd":
        pytest.skip("etcd speaks to nobody without a certificate, as the first test shows")
    door = next(door for door in doors_of(attacked) if door.kind == "metadata")
    frames = (
        [1, EmbeddedOp.HELLO, MAGIC, greeting_version(with_release=True), 10_000, 0, ""],
        [2, EmbeddedOp.APPLY, [encode_operation(Create(MARK, b""))]],
    )
    as_stranger(lambda: repr(said_at(door, b"".join(map(encode_frame, frames)))))

    async def is_there() -> bool:
        store = await connect_store(attacked.metadata_url)
        try:
            return await store.exists(MARK) is not None
        finally:
            await store.close()

    assert not asyncio.run(is_there())


def test_no_socket_is_replaced_and_no_file_is_written(attacked: LiveCluster) -> None:
    ray = Path(attacked.state.ray_temporary_directory)
    sockets = [path for path in ray.rglob("*") if path.is_socket()]
    assert [path for path in sockets if path.name.startswith("raylet")]
    folders = [attacked.home, attacked.home / "logs", *{path.parent for path in (*sockets, ray / "r")}]

    def attack() -> str:
        done = []
        for path in sockets:
            with suppress(OSError):
                path.unlink()
                done.append(f"unlinked {path}")
        for folder in folders:
            with suppress(OSError):
                (folder / "planted").write_text("x")
                done.append(f"wrote into {folder}")
        for door in doors:
            name = socket_name(*door.place)
            assert name is not None
            with suppress(OSError), socket.socket(socket.AF_UNIX) as taken:
                taken.bind(name)
                done.append(f"took the name of {door.part}")
        return ", ".join(done)

    # A part with TLS has no Unix socket: nobody looks for its name.
    doors = [door for door in doors_of(attacked) if door.kind in ("bookie", "broker") and not door.is_tls]
    assert as_stranger(attack) == ""
    assert all(path.exists() for path in sockets)


def starts_of(cluster: LiveCluster) -> dict[str, str]:
    """Return the history of the starts of each part."""
    found = {path.stem: path.read_text() for path in (cluster.home / "logs").glob("*.starts")}
    assert {name.partition("-")[0] for name in found} >= {"bookie", "broker", "gateway"}
    return found


@contextmanager
def all_parts_answering(cluster: LiveCluster, admin: heliograph.Client) -> Iterator[None]:
    """Ask after health, and send and receive as a bystander, until the block ends. Nothing fails, and no part ends."""
    failures: list[Exception] = []
    rounds: list[bytes] = []
    has_begun, stopped = threading.Event(), threading.Event()
    context = ssl.create_default_context(cafile=cluster.state.tls_ca_file)

    def go_on() -> None:
        try:
            with admin.producer(BYSTANDER) as producer, admin.consumer(BYSTANDER, "b") as consumer:
                while not stopped.is_set():
                    producer.send(b"%d" % len(rounds))
                    received = consumer.receive(60)
                    consumer.ack(received)
                    assert urllib.request.urlopen(f"{cluster.state.gateway_url}/health", context=context).status == 200
                    rounds.append(received.value)
                    has_begun.set()
                    stopped.wait(0.1)
        except Exception as error:
            failures.append(error)
            has_begun.set()

    def have_started() -> bool:  # a port may have been another program's for a moment
        return all(not json.loads(each)["failure"] for each in starts_of(cluster).values())

    wait_for(have_started, START_SECONDS_MAX, "a part does not start")
    before = starts_of(cluster)
    asking = threading.Thread(target=go_on, name="bystander")
    asking.start()
    has_begun.wait()
    begun = len(rounds)
    try:
        yield
    finally:
        stopped.set()
        asking.join()
    assert failures == []
    assert rounds == [b"%d" % number for number in range(len(rounds))]
    assert len(rounds) > begun
    assert starts_of(cluster) == before, "a part ended"


def test_a_tenant_with_one_right_reads_nothing_and_ends_no_part(attacked: LiveCluster) -> None:
    if not attacked.config.secure:
        pytest.skip("callers have no roles: authentication is disabled")
    token = new_token(tenant.ROLE, (attacked.home / SECRET_KEY_FILE).read_bytes(), "HS256")
    with administrator_of(attacked) as admin:
        tenant.prepare(admin)
        with all_parts_answering(attacked, admin):
            tenant.attack(attacked.state.service_url, token, tls_ca_file=attacked.state.tls_ca_file)
            tenant.check_and_delete(admin)
        admin.admin.delete_topic(BYSTANDER, force=True)
        left = [topic["name"] for topic in admin.admin.list_topics("public/default")]
        assert left == ["persistent://public/default/private"]

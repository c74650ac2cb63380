"""Members of etcd that a cluster runs: they end with their actors, lose disks, leaders and certificates."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.session import BrokerSessions
from heliograph.base.errors import ResourceError, ServiceNotReadyError
from heliograph.base.processes import ProcessName, wait_until
from heliograph.base.tls.authority import CertificateAuthority
from heliograph.base.tls.contexts import PeerTlsFiles
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.etcd.wire.connection import open_channel
from heliograph.metadata.backends.etcd.wire.modules import etcd_api
from heliograph.metadata.connect import connect_renewing_store, connect_store
from heliograph.metadata.etcd_member.changes import defragment
from heliograph.metadata.etcd_member.membership import EtcdMembership
from heliograph.metadata.etcd_member.survey import survey
from heliograph.metadata.etcd_member.votes import EtcdVotes
from heliograph.metadata.paths import bundles
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore
from tests.cluster.metadata.etcd_world import run, session, three_members
from tests.cluster.metadata.members.member_world import formed, free_run, member_in, membership_of
from tests.patience import START_SECONDS
from tests.rules.source import ROOT

SESSION_MS = 60_000
PUBLISHED_AFTER = 40


@pytest.mark.cluster
def test_etcd_never_outlives_its_actor(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cluster.metadata.members.member_world", str(tmp_path), str(free_run(2))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as actor:
        assert actor.stdout is not None
        etcd = ProcessName.of(int(actor.stdout.readline()))
        assert etcd is not None
        assert etcd.is_alive()
        actor.kill()
    assert wait_until(lambda: not etcd.is_alive(), START_SECONDS)


@pytest.mark.cluster
async def test_a_member_that_lost_its_disk_is_replaced_and_has_what_the_others_have(tmp_path: Path) -> None:
    membership = membership_of(3)
    url = membership.store_url(None)
    async with formed(tmp_path, membership) as members, session(url) as store:
        await store.create("/kept", b"value")
        lost = membership.members[0]
        os.kill(await members[lost.name].etcd_pid(), signal.SIGKILL)
        assert await members[lost.name].ended() == "etcd ended by signal SIGKILL"
        shutil.rmtree(tmp_path / lost.name)
        await store.create("/later", b"")
        votes, peer = EtcdVotes(EtcdAddress.parse(url), membership.members[1].endpoint), lost.peer_url(None)
        (old,) = (one for one in await asyncio.to_thread(votes.listed) if peer in one.peer_urls)
        await _in_the_end(lambda: votes.remove(old.member_id))
        await _in_the_end(lambda: votes.add_learner(peer))
        members[lost.name] = member_in(tmp_path, lost.name, membership)
        await members[lost.name].permit(is_joining=True)
        starting = asyncio.create_task(members[lost.name].start())
        (new,) = (one for one in await asyncio.to_thread(votes.listed) if one.is_learner)
        await _in_the_end(lambda: votes.promote(new.member_id))
        await starting
        found = await survey(EtcdAddress.parse(url))
        assert [member.name for member in found.members] == [member.name for member in membership.members]
        async with session(f"etcd://{lost.endpoint}") as through_it:
            await through_it.sync()
            assert (await through_it.get("/kept"))[0] == b"value"
            assert await through_it.children("/") == ["kept", "later"]
        done: list[str] = []
        await defragment(EtcdAddress.parse(url), lambda member, _: done.append(member.name))
        assert sorted(done) == [member.name for member in membership.members]


@pytest.mark.cluster
async def test_a_member_gets_its_vote_when_it_has_the_data_and_gives_it_back(tmp_path: Path) -> None:
    both = membership_of(2)
    first, second = both.members
    alone = EtcdMembership(both.cluster_id, (first,))
    address = EtcdAddress.parse(alone.store_url(None))
    votes = EtcdVotes(address, first.endpoint)
    async with formed(tmp_path, alone) as members, session(alone.store_url(None)) as store:
        await store.create("/kept", b"value")
        await asyncio.to_thread(votes.add_learner, second.peer_url(None))
        unnamed = next(one for one in await asyncio.to_thread(votes.listed) if one.is_learner)
        assert unnamed.peer_urls == (second.peer_url(None),)
        with pytest.raises(ServiceNotReadyError):
            await asyncio.to_thread(votes.promote, unnamed.member_id)  # it has not started
        await store.set("/kept", b"later")  # and its absence costs nothing
        joining = members[second.name] = member_in(tmp_path, second.name, both)
        await joining.permit(is_joining=True)
        starting = asyncio.create_task(joining.start())
        await _in_the_end(lambda: votes.promote(unnamed.member_id))
        await starting
        assert all(member.is_serving for member in (await survey(EtcdAddress.parse(both.store_url(None)))).members)
        async with session(f"etcd://{second.endpoint}") as through_it:
            assert (await through_it.get("/kept"))[0] == b"later"
        await asyncio.to_thread(votes.hand_over, first.endpoint, unnamed.member_id)
        await joining.retire(True)
        await _in_the_end(lambda: votes.remove(unnamed.member_id))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(joining.ended(), 0.01)  # its actor does not end with it
        await joining.erase()
        assert not any((tmp_path / second.name).iterdir())
        await store.set("/kept", b"alone again")


async def _in_the_end(change: Callable[[], None]) -> None:
    """Repeat a change of the members that etcd refuses until it is ready for it."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                return await asyncio.to_thread(change)
            except ServiceNotReadyError:
                await asyncio.sleep(0.1)


@pytest.mark.cluster
@pytest.mark.full
async def test_a_full_database_raises_an_alarm_that_ends_with_the_space_that_comes_back(tmp_path: Path) -> None:
    membership = membership_of(1)
    address = EtcdAddress.parse(membership.store_url(None))
    async with formed(tmp_path, membership), session(membership.store_url(None)) as store:
        await store.create("/node", b"")
        with pytest.raises(ResourceError, match="space exceeded"):
            await _fill(store, "/node")
        assert (await survey(address)).members[0].alarms == ("NOSPACE",)
        channel = open_channel(address.endpoints[0], None)
        api = etcd_api()
        revision = api.KVStub(channel).Range(api.RangeRequest(key=b"x")).header.revision
        api.KVStub(channel).Compact(api.CompactionRequest(revision=revision, physical=True))
        channel.close()
        await defragment(address, lambda *_: None)
        assert not (await survey(address)).members[0].alarms
        await store.set("/node", b"fits")


@pytest.mark.cluster
async def test_a_quorum_that_comes_back_goes_on(tmp_path: Path) -> None:
    membership = membership_of(3)
    async with formed(tmp_path, membership) as members, session(membership.store_url(None)) as store:
        await store.create("/kept", b"value")
        away = [member.name for member in membership.members[1:]]
        for name in away:
            await members[name].stop()
        found = await survey(EtcdAddress.parse(membership.store_url(None)))
        assert "quorum lost: 1 of 3 members answer" in found.trouble
        for name in away:
            members[name] = member_in(tmp_path, name, membership)
        await asyncio.gather(*(members[name].start() for name in away))
        assert (await store.get("/kept"))[0] == b"value"


@pytest.mark.cluster
async def test_with_certificates_only_parts_are_let_in(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "certificates")
    authority.ensure(["127.0.0.1"])
    parts, client = (
        PeerTlsFiles(str(authority.file(f"{name}.pem")), str(authority.file(f"{name}.key")), str(authority.certificate))
        for name in ("parts", "client")
    )
    membership = membership_of(3)
    async with formed(tmp_path, membership, parts, "localhost"):
        async with session(membership.store_url(parts)) as store:
            await store.create("/kept", b"value")
        assert (await survey(EtcdAddress.parse(membership.store_url(parts)))).has_quorum
        assert all(member.why for member in (await survey(EtcdAddress.parse(membership.store_url(client)))).members)
        assert all(member.why for member in (await survey(EtcdAddress.parse(membership.store_url(None)))).members)


@pytest.mark.cluster
def test_publishing_goes_on_while_etcd_elects_another_leader(tmp_path: Path) -> None:  # I13
    with three_members(tmp_path / "etcd") as servers:
        url = "etcd://" + ",".join(server.address for server in servers)

        async def scenario() -> None:
            async with AsyncExitStack() as stack:
                sessions = await _started(url, tmp_path, stack)
                assert sessions._store is not None
                session_id = sessions._store.session_id
                topics = [f"topic-{number}" for number in range(4)]
                for topic in topics:
                    await sessions.broker.admin.publish(topic, [b"before"])
                observer = await connect_store(url, session_timeout_ms=SESSION_MS)
                stack.push_async_callback(observer.close)
                owners = await _owners(observer)
                assert owners, "the broker has bundles"
                found = await survey(EtcdAddress.parse(url))
                leader = next(number for number, member in enumerate(found.members) if member.is_leader)
                servers[leader].kill()
                pauses = []
                for number in range(PUBLISHED_AFTER):
                    begun = time.monotonic()
                    # Each tenth topic is new: it needs the store, and waits for the next leader.
                    topic = f"new-{number}" if number % 10 == 0 else topics[number % len(topics)]
                    await sessions.broker.admin.publish(topic, [b"after"])
                    pauses.append(time.monotonic() - begun)
                ranges = [await sessions.broker.admin.ledger_ranges(topic) for topic in topics]
                assert all(len(of_topic) == 1 for of_topic in ranges), "no topic was opened again"
                assert (await _owners(observer)).items() >= owners.items(), "no topic lost its owner"
                assert sessions._store is not None
                assert sessions._store.session_id == session_id, "the session stands"
                print(f"longest pause of one publish while etcd elected a leader: {max(pauses):.2f} s")

        run(scenario())


async def _started(url: str, directory: Path, stack: AsyncExitStack) -> BrokerSessions:
    """Start three bookies and a broker."""
    observer = await connect_store(url)
    await initialise(observer)
    await observer.close()
    for number in range(3):
        folder = directory / str(number)
        store = await connect_renewing_store(url, session_timeout_ms=SESSION_MS)
        stack.push_async_callback(store.close)
        config = BookieConfig(f"b{number}", (folder / "journal",), (folder / "data",))
        bookie = Bookie(config, store)
        await bookie.start()
        stack.push_async_callback(bookie.stop)
    sessions = BrokerSessions(BrokerConfig("only", session_timeout_ms=SESSION_MS), url)
    await sessions.start()
    stack.push_async_callback(sessions.stop)
    return sessions


async def _fill(store: MetadataStore, path: str) -> None:
    """Write until the database is full: every value stays in etcd's history."""
    for _ in range(200):
        await store.set(path, bytes(900_000))


async def _owners(store: MetadataStore) -> dict[str, int]:
    """Return the owner nodes of the default namespace's bundles, each with the transaction that made it."""
    parent = bundles("public", "default")
    found = {}
    for name in await store.children(parent):
        found[name] = (await store.get(f"{parent}/{name}"))[1].czxid
    return found

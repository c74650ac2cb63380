"""The etcd members that a cluster runs itself: identity, command line, versions, and what is said of them."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.base.errors import ConflictError, InvalidConfigError, ResourceError
from heliograph.base.peer import ListenAddress
from heliograph.base.tls.contexts import PeerTlsFiles
from heliograph.cluster.doctor.finding import Severity
from heliograph.cluster.doctor.members import judged_members
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.etcd_member import actor, binary
from heliograph.metadata.etcd_member.actor import EtcdMemberActor
from heliograph.metadata.etcd_member.command import MemberPlan, command_of, environment_of, text_of
from heliograph.metadata.etcd_member.config import EtcdConfig
from heliograph.metadata.etcd_member.cookie import (
    DATA,
    MemberCookie,
    check_cookie,
    erase,
    note_served,
    read_cookie,
    write_cookie,
)
from heliograph.metadata.etcd_member.membership import EtcdMember, EtcdMembership
from heliograph.metadata.etcd_member.survey import MemberState, Survey
from heliograph.report.members import named, problem_of

TLS = PeerTlsFiles("/c/parts.pem", "/c/parts.key", "/c/ca.pem")
MEMBERS = tuple(EtcdMember(f"metadata-{number}", f"10.0.0.{number}", 2377 + 2 * number) for number in (1, 2, 3))
MEMBERSHIP = EtcdMembership("c1", MEMBERS)
COOKIE = MemberCookie("c1", "metadata-1", is_joining=False)


def test_a_disk_is_of_one_member_of_one_cluster(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    assert check_cookie(disk, "c1", "metadata-1") is None
    write_cookie(disk, COOKIE)
    assert check_cookie(disk, "c1", "metadata-1") == COOKIE
    for other in (("c2", "metadata-1"), ("c1", "metadata-2")):
        with pytest.raises(ConflictError, match="is the disk of metadata-1 in cluster c1"):
            check_cookie(disk, *other)
    with pytest.raises(ConflictError, match="is not empty"):
        write_cookie(disk, COOKIE)


def test_a_disk_that_lost_its_data_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    write_cookie(tmp_path, COOKIE)
    (tmp_path / DATA).mkdir()
    note_served(tmp_path, COOKIE)
    (tmp_path / DATA).rmdir()
    with pytest.raises(ConflictError, match=r"helio metadata replace metadata-1 --empty-disk"):
        check_cookie(tmp_path, "c1", "metadata-1")
    erase(tmp_path)
    assert read_cookie(tmp_path) is None


def test_data_without_a_cookie_and_damaged_cookies_are_refused(tmp_path: Path) -> None:
    (tmp_path / DATA).mkdir()
    with pytest.raises(ConflictError, match=r"no member\.json says whose"):
        check_cookie(tmp_path, "c1", "metadata-1")
    for text in ("{", "[]", '{"version": 9}', '{"version": 1, "further": 2}'):
        (tmp_path / "member.json").write_text(text)
        with pytest.raises(ResourceError, match="member"):
            read_cookie(tmp_path)


def test_the_command_names_all_members_and_the_limits() -> None:
    plan = MemberPlan("metadata-2", MEMBERSHIP, EtcdConfig(quota_bytes=1 << 30, history_seconds=120))
    command = command_of(plan, "/bin/etcd", Path("/data/etcd"), "10.0.0.2", is_joining=False)
    assert command[0] == "/bin/etcd"
    assert {
        "--listen-client-urls=http://10.0.0.2:2381",
        "--listen-peer-urls=http://10.0.0.2:2382",
        "--initial-cluster=metadata-1=http://10.0.0.1:2380,metadata-2=http://10.0.0.2:2382,metadata-3=http://10.0.0.3:2384",
        "--initial-cluster-token=c1",
        "--initial-cluster-state=new",
        "--quota-backend-bytes=1073741824",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=120s",
    } <= set(command)
    assert not any("cert" in flag for flag in command)
    assert "--initial-cluster-state=existing" in command_of(plan, "/bin/etcd", Path("/d"), "::", is_joining=True)
    assert "--listen-client-urls=http://[::]:2381" in command_of(plan, "/bin/etcd", Path("/d"), "::", is_joining=True)


def test_with_certificates_both_ports_ask_for_them() -> None:
    plan = MemberPlan("metadata-1", MEMBERSHIP, EtcdConfig(), TLS, "localhost")
    command = command_of(plan, "/bin/etcd", Path("/data/etcd"), "10.0.0.1", is_joining=False)
    assert {
        "--client-cert-auth=true",
        "--peer-client-cert-auth=true",
        "--trusted-ca-file=/c/ca.pem",
        "--peer-trusted-ca-file=/c/ca.pem",
        "--client-cert-allowed-hostname=localhost",
        "--peer-cert-allowed-hostname=localhost",
        "--advertise-client-urls=https://10.0.0.1:2379",
    } <= set(command)


def test_the_url_names_all_members() -> None:
    assert MEMBERSHIP.store_url(None) == "etcd://10.0.0.1:2379,10.0.0.2:2381,10.0.0.3:2383"
    address = EtcdAddress.parse(MEMBERSHIP.store_url(TLS))
    assert address.endpoints == tuple(member.endpoint for member in MEMBERS)
    assert address.tls is not None
    assert (str(address.tls.ca), str(address.tls.cert), str(address.tls.key)) == (TLS.ca, TLS.certificate, TLS.key)


def test_the_record_of_the_members_is_read_as_it_was_written() -> None:
    assert EtcdMembership.parse(MEMBERSHIP.fields()) == MEMBERSHIP
    for damaged in ({}, {"cluster_id": "c", "members": [{}], "is_formed": True}, {"members": 5}):
        with pytest.raises(ResourceError, match="is damaged"):
            EtcdMembership.parse(damaged)


def test_variables_of_etcd_do_not_reach_it() -> None:
    found = environment_of({"PATH": "/bin", "ETCD_DATA_DIR": "/elsewhere", "ETCD_UNSUPPORTED_ARCH": "arm64"})
    assert found == {"PATH": "/bin", "ETCD_UNSUPPORTED_ARCH": "arm64"}


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match="election_ms is 400"):
        EtcdConfig(heartbeat_ms=100, election_ms=400)
    with pytest.raises(InvalidConfigError, match="quota_bytes"):
        EtcdConfig(quota_bytes=1)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ((3, 3, 27), "oldest"),
        ((3, 4, 0), ""),
        ((3, 4, 23), ""),
        ((3, 5, 0), "corrupt"),
        ((3, 5, 2), "corrupt"),
        ((3, 5, 3), ""),
        ((3, 6, 1), ""),
        ((4, 0, 0), "not known"),
    ],
)
def test_versions_that_can_be_used(version: binary.Version, reason: str) -> None:
    found = binary.problem_of(version)
    assert reason in found
    assert bool(reason) == bool(found)


def program(directory: Path, text: str) -> str:
    path = directory / "etcd"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_node_without_an_etcd_that_can_be_used_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = program(tmp_path, "echo etcd Version: 3.3.27")
    with pytest.raises(ResourceError, match=r"is etcd 3\.3\.27, and 3\.4\.0 is the oldest.* etcd\.binary"):
        binary.find_etcd(old)
    with pytest.raises(ResourceError, match="does not say that it is etcd"):
        binary.find_etcd(program(tmp_path, "echo hello"))
    with pytest.raises(ResourceError, match="no program etcd at /nowhere"):
        binary.find_etcd("/nowhere")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ResourceError, match="apt install etcd-server"):
        binary.find_etcd("")
    assert binary.find_etcd(program(tmp_path, "echo etcd Version: 3.4.23"))[1] == (3, 4, 23)


def test_what_etcd_writes_is_read_whatever_it_is() -> None:
    assert text_of('{"level":"warn","msg":"slow","error":"disk"}') == ("warn", "slow: disk")
    assert text_of('{"level":"fatal","msg":"no"}') == ("fatal", "no")
    for line in ("panic: broken", "{", "[1]", "null", '{"level": 1}'):
        assert text_of(line) == ("panic", line)


def member(number: int, leader: int = 1, why: str = "") -> MemberState:
    return MemberState(f"10.0.0.{number}:2379", f"metadata-{number}", number, 0 if why else leader, why=why)


def test_a_lost_quorum_says_who_has_to_come_back() -> None:
    assert Survey((member(1), member(2), member(3, why="away"))).trouble == ""
    lost = Survey((member(1, leader=0), member(2, why="away"), member(3, why="away")))
    assert not lost.has_quorum
    assert lost.trouble == (
        "quorum lost: 1 of 3 members answer, 2 have to; nothing changes owner until 1 of these are back: "
        "10.0.0.2:2379, 10.0.0.3:2379"
    )
    assert "no leader" in Survey((member(1, leader=0), member(2, leader=0), member(3, why="away"))).trouble


async def test_a_member_does_not_begin_on_an_empty_disk_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "PERMIT_SECONDS", 0.01)
    etcd = program(tmp_path, "echo etcd Version: 3.4.23")
    plan = MemberPlan("metadata-1", MEMBERSHIP, EtcdConfig(binary=etcd))
    made = EtcdMemberActor(str(tmp_path / "disk"), ListenAddress("127.0.0.1", 2379), plan)
    with pytest.raises(ConflictError, match=r"is empty: `helio metadata replace metadata-1 --empty-disk`"):
        await made.start()
    assert not os.path.exists(tmp_path / "disk")


async def test_the_permission_after_a_loss_leaves_the_disk_of_another_member_alone(tmp_path: Path) -> None:
    write_cookie(tmp_path, MemberCookie("c2", "metadata-1", is_joining=False))
    made = EtcdMemberActor(
        str(tmp_path), ListenAddress("127.0.0.1", 2379), MemberPlan("metadata-1", MEMBERSHIP, EtcdConfig())
    )
    with pytest.raises(ConflictError, match="in cluster c2"):
        await made.permit(is_joining=True)
    assert read_cookie(tmp_path) == MemberCookie("c2", "metadata-1", is_joining=False)


async def test_a_disk_is_erased_by_one_call_at_a_time_although_callers_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cookie(tmp_path, COOKIE)
    running: list[Path] = []
    ended, may_go_on = threading.Semaphore(0), threading.Event()

    def slow(directory: Path) -> None:
        assert not running, "another call deletes the same files"
        running.append(directory)
        may_go_on.wait()
        erase(directory)
        running.remove(directory)
        ended.release()

    monkeypatch.setattr(actor, "erase", slow)
    plan = MemberPlan("metadata-1", MEMBERSHIP, EtcdConfig())
    made = EtcdMemberActor(str(tmp_path), ListenAddress("127.0.0.1", 1), plan)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(made.erase(), 0.01)
    again = asyncio.create_task(made.erase())
    joining = asyncio.create_task(made.permit(is_joining=True))
    for _ in range(10):
        await asyncio.sleep(0)
    assert running == [tmp_path]
    assert not again.done()
    may_go_on.set()
    await asyncio.gather(again, joining)
    for _ in range(2):
        ended.acquire()
    assert check_cookie(tmp_path, "c1", "metadata-1") == replace(COOKIE, is_joining=True)


async def test_etcd_that_ends_while_it_starts_says_why(tmp_path: Path) -> None:
    words = '{"level":"fatal","msg":"discovery failed","error":"the reason"}'
    etcd = program(tmp_path, f"test $1 = --version && echo etcd Version: 3.4.23 && exit\necho '{words}'; exit 3")
    one = EtcdMembership("c1", (EtcdMember("metadata-1", "127.0.0.1", 1),))
    plan = MemberPlan("metadata-1", one, EtcdConfig(binary=etcd))
    made = EtcdMemberActor(str(tmp_path / "disk"), ListenAddress("127.0.0.1", 1), plan)
    await made.permit(is_joining=False)
    with pytest.raises(ResourceError, match=r"etcd ended by exit code 3: discovery failed: the reason"):
        await made.start()


def test_what_is_wrong_with_members_is_said_in_status_and_doctor() -> None:
    full = replace(member(2), alarms=("NOSPACE",))
    assert problem_of(member(1)) == ""
    assert problem_of(full) == "alarm NOSPACE: helio metadata defragment"
    assert problem_of(member(3, why="connection refused")) == "does not serve: connection refused"
    assert "no leader" in problem_of(member(1, leader=0))
    whole = judged_members(Survey((member(1), member(2), member(3))))
    assert (whole.severity, whole.found) == (Severity.OK, "3 of 3 serve, leader metadata-1, etcd ")
    alarmed = judged_members(Survey((member(1), full, member(3))))
    assert (alarmed.severity, "10.0.0.2:2379 NOSPACE" in alarmed.found) == (Severity.PROBLEM, True)
    away = Survey((member(1), member(2), member(3, why="away")))
    assert judged_members(away).severity is Severity.WARNING
    lost = Survey((member(1, leader=0), member(2, why="away"), member(3, why="away")))
    assert judged_members(lost).severity is Severity.PROBLEM


def test_members_have_their_names_whatever_the_number_of_the_first() -> None:
    silent, serving = MemberState("10.0.0.2:2381", why="refused"), MemberState("10.0.0.3:2383", "metadata-3", 3, 3)
    assert named([silent, serving], ["metadata-3", "metadata-2"]) == {"metadata-2": silent, "metadata-3": serving}
    first = MemberState("10.0.0.1:2379", "metadata-1", 1, 1)
    assert named([serving, first], ["metadata-1", "metadata-3"]) == {"metadata-1": first, "metadata-3": serving}

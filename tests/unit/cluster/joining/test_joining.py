"""``helio join``: what a machine remembers, what is refused before anything starts, and the watch over its node."""

from __future__ import annotations

import os
import platform
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.exceptions
from typer.testing import CliRunner

from heliograph.base.errors import (
    BadRequestError,
    ClusterNotFoundError,
    ConflictError,
    HeliographError,
    InvalidConfigError,
    ResourceError,
    ServiceNotReadyError,
)
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.processes import ProcessName
from heliograph.base.system.processes import boot_id
from heliograph.base.version import heliograph_version
from heliograph.cli import joining as cli_joining
from heliograph.cli.app import app
from heliograph.cli.operations.metadata_access import store_of
from heliograph.client import discovery
from heliograph.cluster import labels, lifecycle, supervision
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import launch
from heliograph.cluster.joining import join as joining
from heliograph.cluster.joining import leave, node, noted, record, view
from heliograph.cluster.joining.join import JoinOutcome, JoinWishes, join
from heliograph.cluster.joining.leave import LeaveOutcome
from heliograph.cluster.joining.record import NodeRecord, load_record, save_record
from heliograph.cluster.joining.view import ClusterCard, OutsideView
from heliograph.metadata.operator_records import ClusterReport, PartReport, Wish, WishKind, WishState
from heliograph.report import asking

HEAD = "127.0.0.1:6379"
CARD = ClusterCard("n", heliograph_version(), "node", has_operator=False, service_url="pulsar://a:6650")
VERSIONS = {"python_version": platform.python_version(), "ray_version": ray.__version__}


class FakeView(OutsideView):
    """A cluster whose node at 127.0.0.1 is there as soon as it was started."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.there: frozenset[str] = frozenset()
        self.found = CARD
        self.versions = VERSIONS
        self._gcs: Any = SimpleNamespace(programs=lambda: self.versions)

    def card(self, namespace: str) -> ClusterCard | None:
        return self.found if namespace == self.found.namespace else None

    def nodes_at(self, address: str) -> frozenset[str]:
        return self.there


@pytest.fixture
def home(tmp_path: Path) -> ClusterHome:
    made = ClusterHome(tmp_path / "home")
    made.prepare()
    return made


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeView:
    """A cluster at ``HEAD``; a Ray node that is started is this process."""
    made = FakeView(HEAD)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(joining, "OutsideView", lambda address: made)
    monkeypatch.setattr(discovery, "attach", lambda *_, **__: None)
    monkeypatch.setattr(launch, "raylet_of", lambda leader: leader)

    def start(wanted: NodeRecord, head: str, home: ClusterHome) -> NodeRecord:
        made.there = made.there | {"new"}
        return running(wanted)

    monkeypatch.setattr(node, "start_node", start)
    monkeypatch.setattr(node, "stop_node", lambda known: replace(known, pid=0, start_ticks=0, boot=""))
    return made


def running(known: NodeRecord) -> NodeRecord:
    name = ProcessName.of(os.getpid())
    assert name is not None
    return replace(known, pid=name.pid, start_ticks=name.start_ticks, boot=boot_id())


def joined(home: ClusterHome, **wishes: Any) -> joining.JoinOutcome:
    return join(JoinWishes(**wishes), "n", home, 0.0)


def test_labels_are_given_short_or_in_full_and_together() -> None:
    found = labels.read_labels(["bookie=true,rack=r2", "heliograph.io/broker=true", "acme.com/room=7"])
    assert found == {labels.BOOKIE: "true", labels.RACK: "r2", labels.BROKER: "true", "acme.com/room": "7"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("brokr=true", "nearest is heliograph.io/broker"),
        ("heliograph.io/boookie=true", "nearest is heliograph.io/bookie"),
        ("broker=yes", "use true"),
        ("bookie=4", "bookie-4"),
        ("rack", "name=value"),
        ("rack=", "name=value"),
    ],
)
def test_labels_that_mean_nothing_are_refused_with_the_way_out(text: str, why: str) -> None:
    with pytest.raises(BadRequestError, match=why):
        labels.read_labels([text])


def test_a_machine_that_joins_again_takes_the_same_address_and_labels(home: ClusterHome, cluster: FakeView) -> None:
    first = joined(home, head=HEAD, labels={labels.BOOKIE: "true"}, host="127.0.0.1")
    assert (first.address, first.labels) == ("127.0.0.1", {labels.BOOKIE: "true"})
    known = load_record(home)
    assert known is not None
    save_record(home, replace(known, boot="another"))  # a reboot
    cluster.there = frozenset()
    assert joined(home) == first


def test_without_labels_a_node_may_carry_bookies_and_brokers(home: ClusterHome, cluster: FakeView) -> None:
    assert joined(home, head=HEAD).labels == {labels.BOOKIE: "true", labels.BROKER: "true"}


def test_commands_on_the_machine_find_the_cluster(home: ClusterHome, cluster: FakeView) -> None:
    joined(home, head=HEAD)
    state = home.load()
    assert state is not None
    assert (state.ray_address, state.service_url, state.node_address) == (HEAD, "pulsar://a:6650", "127.0.0.1")


def test_joining_twice_is_the_same_as_once_unless_it_would_be_another_node(
    home: ClusterHome, cluster: FakeView
) -> None:
    first = joined(home, head=HEAD)
    assert joined(home, head=HEAD) == first
    with pytest.raises(ConflictError, match="helio leave first"):
        joined(home, labels={labels.BROKER: "true"})


def waited(home: ClusterHome, monkeypatch: pytest.MonkeyPatch, answer: Wish, **changed: Any) -> JoinOutcome:
    """Wait for bookie-4 of this machine, as the operator answers."""
    known = running(NodeRecord("n", HEAD, "127.0.0.1", {labels.BOOKIE: "bookie-4"}))
    save_record(home, replace(known, **changed))

    def wished(kind: WishKind, subject: str, arguments: dict[str, str], *_: Any, **options: Any) -> Wish:
        assert (kind, subject, arguments) == (WishKind.JOIN, "127.0.0.1", {"bookie": "bookie-4"})
        options["check"]()
        return answer

    monkeypatch.setattr(joining, "wished", wished)
    monkeypatch.setattr(launch, "raylet_of", lambda leader: leader)
    return joining._wait_for_parts(known, home, 0.0, print)


def parts_of(monkeypatch: pytest.MonkeyPatch, *looks: list[str]) -> None:
    """Have each look find the parts of the next item, and none in an empty one; later looks find the last."""
    left = list(looks)

    def look(namespace: str) -> list[str]:
        found = left.pop(0) if len(left) > 1 else left[0]
        if not found:
            raise ClusterNotFoundError("no Heliograph runs in Ray namespace 'n'")
        return found

    monkeypatch.setattr(discovery, "actor_names", look)
    monkeypatch.setattr(joining, "POLL_SECONDS", 0.001)


def test_a_machine_that_joins_before_the_parts_start_waits_for_the_operator(
    home: ClusterHome, cluster: FakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card of a cluster is there before its first part, so that the parts can wait for machines to join."""
    cluster.found = replace(CARD, has_operator=True)
    parts_of(monkeypatch, [], ["metadata"], ["metadata", "bookie-1"], ["metadata", "operator"])

    def wished(kind: WishKind, subject: str, *_: Any, **__: Any) -> Wish:
        assert discovery.actor_names("n") == ["metadata", "operator"]
        return Wish(kind, subject, outcome={"parts": ["bookie-1"]})

    monkeypatch.setattr(joining, "wished", wished)
    said: list[str] = []
    assert join(JoinWishes(head=HEAD), "n", home, 300.0, said.append).parts == ("bookie-1",)
    assert said.count(f"waiting until helio up at {HEAD} starts the operator") == 1


def test_a_machine_that_joins_a_cluster_that_serves_waits_for_no_operator(
    home: ClusterHome, cluster: FakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wish is stored, and the next operator carries it out."""
    cluster.found = replace(CARD, has_operator=True, metadata_url="heliograph://10.0.0.1:2181")
    parts_of(monkeypatch, [])
    monkeypatch.setattr(joining, "wished", lambda kind, subject, *_, **__: Wish(kind, subject))
    assert joined(home, head=HEAD).missing == {"operator": "it has not answered yet"}


def test_an_operator_that_does_not_start_ends_the_wait_and_not_the_node(
    home: ClusterHome, cluster: FakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.found = replace(CARD, has_operator=True)
    parts_of(monkeypatch, [])
    with pytest.raises(ClusterNotFoundError, match="has not started the operator in 0 s") as refusal:
        joined(home, head=HEAD)
    assert refusal.value.field == "address", "helio join --watch waits on"
    known = load_record(home)
    assert known is not None
    assert known.is_running


def test_a_join_whose_raylet_has_ended_fails_at_once(home: ClusterHome, monkeypatch: pytest.MonkeyPatch) -> None:
    home.ray_log.write_text("raylet: out of memory\n")
    with pytest.raises(ResourceError, match="has ended: raylet: out of memory"):
        waited(home, monkeypatch, Wish(WishKind.JOIN, "127.0.0.1"), boot="another")


@pytest.mark.parametrize(("why", "failing"), [("no time", 2), ("Timed out waiting for file /tmp/port", 9)])
def test_a_node_that_a_busy_machine_does_not_start_in_time_is_started_again(
    home: ClusterHome, cluster: FakeView, monkeypatch: pytest.MonkeyPatch, why: str, failing: int
) -> None:
    starts, stopped = [0], list[NodeRecord]()

    def wait(*_: object) -> None:
        starts[0] += 1
        if starts[0] <= failing:
            raise ResourceError(f"the Ray node did not start: {why}")

    monkeypatch.setattr(node, "wait_for_node", wait)
    monkeypatch.setattr(node, "stop_node", stopped.append)
    said: list[str] = []
    join(JoinWishes(head=HEAD), "n", home, 0.0, said.append)
    again = [line for line in said if "starting it again" in line]
    assert again == [f"the Ray node did not start: {why}; starting it again"] * failing
    assert len(stopped) == failing


@pytest.mark.parametrize(("why", "attempts"), [("no port", 3), ("Timed out waiting for file /tmp/port", 10)])
def test_a_node_that_never_starts_is_given_up(
    home: ClusterHome, cluster: FakeView, monkeypatch: pytest.MonkeyPatch, why: str, attempts: int
) -> None:
    stopped = list[NodeRecord]()

    def wait(*_: object) -> None:
        raise ResourceError(f"the Ray node did not start: {why}")

    monkeypatch.setattr(node, "wait_for_node", wait)
    monkeypatch.setattr(node, "stop_node", stopped.append)
    with pytest.raises(ResourceError, match=why):
        join(JoinWishes(head=HEAD), "n", home, 0.0, print)
    assert len(stopped) == attempts


def test_what_the_operator_tells_of_the_parts_is_the_outcome(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Wish(WishKind.JOIN, "127.0.0.1")
    assert waited(home, monkeypatch, asked).missing == {"operator": "it has not answered yet"}
    found = {"parts": ["bookie-4"], "missing": {"bookie-4": "the cookie is of bookie-9"}}
    told = waited(home, monkeypatch, replace(asked, state=WishState.ACCEPTED, outcome=found))
    assert (told.parts, told.missing) == (("bookie-4",), {"bookie-4": "the cookie is of bookie-9"})


def test_a_node_whose_raylet_ends_before_it_joined_is_not_waited_for(
    home: ClusterHome, cluster: FakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's program goes on without its raylet, and would be waited for to the end; the raylet's log has the reason."""
    looks = iter([True, True, False])
    monkeypatch.setattr(NodeRecord, "is_running", property(lambda _: next(looks)))
    monkeypatch.setattr(node, "POLL_SECONDS", 0.001)
    home.ray_log.write_text("Local node IP\n")
    files = home.directory / "hg-1"
    logs = files / launch.RAY_FILES / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("[2026 I 1 1] it starts\n[2026 C 1 1] no port\n[2026 I 1 1] the end\n")
    found = replace(running(NodeRecord("n", HEAD, "127.0.0.1")), temporary_directory=str(files))
    with pytest.raises(ResourceError, match=r"did not start: the last line of its raylet is: .* no port"):
        node.wait_for_node(found, cluster, frozenset(), home)


@pytest.mark.parametrize("is_forced", [True, False])
def test_a_machine_that_topics_need_is_rebooted_with_force(
    home: ClusterHome, cluster: FakeView, monkeypatch: pytest.MonkeyPatch, is_forced: bool
) -> None:
    joined(home, head=HEAD)
    asked: list[dict[str, str]] = []

    def wished(kind: WishKind, subject: str, arguments: dict[str, str], *_: Any, **__: Any) -> Wish:
        asked.append(arguments)
        if "force" not in arguments:
            raise ConflictError("there are topics with an ensemble of 3")
        return Wish(kind, subject, arguments, state=WishState.DONE)

    monkeypatch.setattr(leave, "wished", wished)
    if is_forced:
        assert leave.leave("n", home, keep_data=True, force=True).is_remembered
        assert asked == [{"data": "for some time", "force": "although topics need it"}]
        return
    with pytest.raises(ConflictError, match=r"ensemble of 3\. To reboot this machine all the same: .* --force, then"):
        leave.leave("n", home, keep_data=True)
    with pytest.raises(ConflictError, match=r"To reboot this machine all the same"):
        leave.leave("n", home)


def test_a_machine_that_is_still_being_emptied_runs_on(
    home: ClusterHome, cluster: FakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(home, head=HEAD)
    left = {"bookie-4": "bookie-4 is being emptied: 3 ledgers to be moved"}
    open_one = Wish(WishKind.LEAVE, "127.0.0.1", state=WishState.ACCEPTED, outcome={"left": left})
    monkeypatch.setattr(leave, "wished", lambda *_, **__: open_one)
    assert leave.leave("n", home) == LeaveOutcome("127.0.0.1", done=False, is_remembered=True, left=left)
    found = load_record(home)
    assert found is not None
    assert found.is_running


def refused(home: ClusterHome, error: type[HeliographError], why: str, **wishes: Any) -> None:
    with pytest.raises(error, match=why):
        joined(home, **wishes)
    assert load_record(home) is None, "nothing was started"


def test_another_release_is_refused_with_all_that_differs(home: ClusterHome, cluster: FakeView) -> None:
    cluster.found = replace(CARD, release="9.9")
    cluster.versions = {**VERSIONS, "python_version": "3.8.1"}
    refused(home, ConflictError, r"Python 3\.8\.1, .*heliograph 9\.9, ", head=HEAD)


def test_what_could_not_work_is_refused_before_anything_starts(home: ClusterHome, cluster: FakeView) -> None:
    refused(home, ClusterNotFoundError, "remembers no cluster")
    refused(home, ClusterNotFoundError, "no host:port", head="127.0.0.1:none")
    refused(home, InvalidConfigError, "no address of this machine", head=HEAD, host="192.0.2.1")
    cluster.found = replace(CARD, namespace="other")
    refused(home, ClusterNotFoundError, "run helio up there", head=HEAD)
    cluster.found = replace(CARD, host="127.0.0.1")
    refused(home, ConflictError, "config set host node", head=HEAD)
    cluster.found = CARD
    cluster.there = frozenset({"another"})
    refused(home, ConflictError, "has a node at 127.0.0.1 already", head=HEAD)


def test_a_cluster_that_does_not_listen_is_refused() -> None:
    with pytest.raises(ClusterNotFoundError, match=r"no Ray answers at 127\.0\.0\.1:1"):
        OutsideView("127.0.0.1:1")


def test_the_home_of_a_cluster_of_its_own_does_not_join(home: ClusterHome, cluster: FakeView) -> None:
    home.save(ClusterState("n", HEAD, ""))
    refused(home, ConflictError, "this machine started", head=HEAD)
    with pytest.raises(ConflictError, match="helio down ends it"):
        leave.leave("n", home)


def test_a_machine_that_joined_starts_and_deletes_no_cluster(home: ClusterHome, cluster: FakeView) -> None:
    joined(home, head=HEAD)
    with pytest.raises(ConflictError, match="joined the cluster at"):
        lifecycle.up(ClusterConfig(home=home.directory, namespace="n"))
    with pytest.raises(ConflictError, match="helio leave"):
        lifecycle.down(home, delete_data=True)
    lifecycle.down(home)
    known = load_record(home)
    assert known is not None
    assert (known.pid, known.labels, home.load()) == (0, joining.DEFAULT_LABELS, None)


def test_a_node_that_does_not_run_is_left_with_force_only(home: ClusterHome, cluster: FakeView) -> None:
    joined(home, head=HEAD)
    lifecycle.down(home)
    with pytest.raises(ClusterNotFoundError, match="run helio join first"):
        leave.leave("n", home)
    assert leave.leave("n", home, force=True).done
    assert load_record(home) is None


@pytest.mark.parametrize(
    ("given", "cores", "said"),
    [
        ({labels.BROKER: "true"}, 24, "heliograph.io/brokers=3,heliograph.io/broker=true"),
        ({labels.BROKER: "true"}, 7, "heliograph.io/broker=true"),
        ({labels.BROKER: "true", labels.BROKERS: "1"}, 24, "heliograph.io/brokers=1,heliograph.io/broker=true"),
        ({labels.BOOKIE: "true"}, 24, "heliograph.io/bookie=true"),
    ],
)
def test_a_node_says_how_many_brokers_it_brings(
    given: dict[str, str], cores: int, said: str, home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def spawn(command: list[str], *_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(pid=1, start_ticks=1)

    monkeypatch.setattr(node, "usable_cores", lambda: cores)
    monkeypatch.setattr(launch, "temporary_directory", lambda: home.directory)
    monkeypatch.setattr(launch, "spawn", spawn)
    started = node.start_node(NodeRecord("n", HEAD, "127.0.0.1", given), HEAD, home)
    assert commands[0][-1] == f"--labels={said}"
    assert started.labels == given, "a machine that joins again after an upgrade is the same node"


def test_a_taken_port_is_refused_with_node_and_port(home: ClusterHome) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"port {port} on 127\.0\.0\.1"):
            node.start_node(NodeRecord("n", HEAD, "127.0.0.1", ray_port=port), HEAD, home)


def test_a_damaged_record_is_refused_by_its_name(home: ClusterHome) -> None:
    (home.directory / record.FILE).write_text("{")
    with pytest.raises(ResourceError, match=r"node\.json"):
        load_record(home)


def watched(home: ClusterHome, monkeypatch: pytest.MonkeyPatch, again: Callable[[int], None]) -> int:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        again(calls)

    monkeypatch.setattr(supervision, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(supervision, "FIRST_PAUSE_MS", 1)
    monkeypatch.setattr(supervision, "join", count)
    supervision.supervise_node("n", home, lambda _: None, threading.Event())
    return calls


def test_a_node_that_has_ended_joins_again_until_it_is_stopped(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = replace(running(NodeRecord("n", HEAD, "127.0.0.1")), start_ticks=1)
    save_record(home, ended)

    def again(call: int) -> None:
        if call == 3:
            save_record(home, replace(ended, pid=0))  # as helio down does
        raise ClusterNotFoundError("the head is away")

    assert watched(home, monkeypatch, again) == 3


def test_a_node_that_left_is_not_watched(home: ClusterHome, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(home, monkeypatch, lambda _: pytest.fail("it joined")) == 0


def test_addresses_have_a_usual_port() -> None:
    assert view.resolved("127.0.0.1", 6379) == HEAD
    assert view.own_address_towards(HEAD) == "127.0.0.1"


def test_a_machine_that_watches_waits_for_a_cluster_that_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def start(wishes: JoinWishes, *_: Any) -> JoinOutcome:
        tries.append(str(wishes.head))
        if len(tries) < 3:
            raise ClusterNotFoundError("no Ray answers", field="address")
        return JoinOutcome("10.0.0.2", {}, str(wishes.head))

    monkeypatch.setattr(joining, "join", start)
    monkeypatch.setattr(cli_joining, "_watch", lambda *_: tries.append("watches"))
    monkeypatch.setattr(cli_joining, "FIRST_PAUSE_MS", 0.001)
    monkeypatch.setattr(cli_joining, "PAUSE_MS_MAX", 0.001)
    home = ["--home", str(tmp_path), "--namespace", "n"]
    shown = CliRunner().invoke(app, ["join", "10.0.0.1", "--watch", *home])
    assert shown.exit_code == 0, shown.output
    assert tries == ["10.0.0.1"] * 3 + ["watches"]
    assert "the next attempt follows" in shown.output
    tries.clear()
    assert isinstance(CliRunner().invoke(app, ["join", "10.0.0.1", *home]).exception, ClusterNotFoundError)
    assert isinstance(CliRunner().invoke(app, ["join", "--watch", *home]).exception, ClusterNotFoundError)
    assert tries == ["10.0.0.1", "None"], "one that names no cluster does not wait for it"


def test_a_node_that_joined_before_the_cluster_served_notes_its_addresses_later(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = ClusterState("heliograph", HEAD, "", node_address="127.0.0.1")
    home.save(joined)
    seen = FakeView(HEAD)
    monkeypatch.setattr(view, "OutsideView", lambda address: seen)
    seen.found = replace(CARD, namespace="heliograph", metadata_url="")
    assert noted.noted_state(home) == joined, "it does not serve yet"
    seen.found = replace(seen.found, metadata_url="heliograph://10.0.0.1:2181", service_url="pulsar://10.0.0.1:6650")
    found = noted.noted_state(home)
    assert found is not None
    assert (found.metadata_url, found.service_url) == ("heliograph://10.0.0.1:2181", "pulsar://10.0.0.1:6650")
    assert home.load() == found, "the next command need not ask"


def test_a_node_asks_the_head_where_the_gateway_is_if_nothing_answers(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = ClusterState(
        "n", HEAD, "", metadata_url="heliograph://10.0.0.1:2181", gateway_url="http://old", node_address="127.0.0.1"
    )
    home.save(joined)
    seen, silent = FakeView(HEAD), ClusterReport(is_silent=True)
    monkeypatch.setattr(view, "OutsideView", lambda address: seen)
    asked = list[str]()

    def ask(state: ClusterState, secret: str | None) -> ClusterReport:
        asked.append(state.gateway_url)
        return ClusterReport(parts=(PartReport("gateway", "gateway"),)) if state.gateway_url == "http://new" else silent

    monkeypatch.setattr(asking, "ask_report", ask)
    seen.found = replace(CARD, metadata_url=joined.metadata_url, gateway_url="http://old", service_url="")
    assert noted.report_of(joined, home) == silent
    seen.found = replace(seen.found, gateway_url="http://new")
    assert noted.report_of(joined, home).parts
    assert asked == ["http://old"] * 2 + ["http://new"]
    assert (home.load() or joined).gateway_url == "http://new", "the next command asks there at once"
    assert noted.report_of(replace(joined, node_address=""), home) == silent, "the head itself need not ask"


def test_a_node_whose_head_is_away_says_so_and_not_that_no_cluster_runs(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(address: str) -> OutsideView:
        raise ClusterNotFoundError("no Ray answers")

    home.save(ClusterState("heliograph", HEAD, "", node_address="127.0.0.1"))
    monkeypatch.setattr(view, "OutsideView", away)
    with pytest.raises(ServiceNotReadyError, match="whose head does not say"):
        store_of(home.directory)

"""`helio` as users run it: every command on a cluster that it started, and nothing is left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from heliograph.base.addressing.part_handle import part_names
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.processes import session_members
from heliograph.client.discovery import ray_token
from heliograph.report.asking import ask_report
from tests.cluster.support.command_process import CommandProcess
from tests.cluster.support.live_cluster import LiveCluster, wait_for
from tests.patience import START_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HELIO = Path(sys.executable).with_name("helio")
PATIENT = ("--idle", "120")  # for what will come


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELIOGRAPH_", "RAY_ADDRESS"))}
    return {**kept, "HELIOGRAPH_START_TIMEOUT_MS": str(START_SECONDS * 1_000), **extra}


def helio(*arguments: str | Path, stdin: str = "", code: int = 0, **extra: str) -> str:
    """Run a command, check its exit code and return what it printed."""
    run = subprocess.run(
        [HELIO, *arguments], capture_output=True, text=True, input=stdin, env=environment(**extra), check=False
    )
    assert run.returncode == code, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    return run.stdout if code == 0 else run.stdout + run.stderr


def helio_json(*arguments: str | Path, stdin: str = "", code: int = 0) -> Any:
    return json.loads(helio(*arguments, "--json", stdin=stdin, code=code))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a cluster that `helio up` started; the last test or this fixture stops it."""
    directory = tmp_path_factory.mktemp("cli")
    more = f'[bookie]\ndata_directories = ["{directory / "disk1"}", "{directory / "disk2"}"]\n'
    (directory / "cluster.toml").write_text("ray_on_loopback = true\n" + more)
    ports = ("--broker-port", "0", "--gateway-port", "0", "--dashboard-port", "0")
    name = f"cli-{uuid.uuid4().hex[:8]}"
    state = helio_json("up", "--home", directory, "--namespace", name, *ports)
    assert state["ray_pid"] > 0
    assert state["service_url"].startswith("pulsar://127.0.0.1:")
    yield directory
    if ClusterHome(directory).load() is not None:
        helio("down", "--home", directory)


@pytest.fixture(scope="module")
def joined(home: Path) -> Iterator[CommandProcess]:
    """Yield a process for many commands of that cluster. Tests of commands that stop the cluster do without it."""
    with CommandProcess(environment()) as process:
        yield process


def test_no_port_of_a_cluster_on_loopback_is_reached_from_elsewhere(home: Path) -> None:
    state = ClusterHome(home).load()
    assert state is not None
    assert state.ray_process is not None
    assert state.ray_address.startswith("127.0.0.1:")
    pids = {process.pid for process in session_members(state.ray_process)}
    assert len(pids) > 10
    inodes = {
        os.readlink(link).removeprefix("socket:[").rstrip("]")
        for pid in pids
        for link in Path(f"/proc/{pid}/fd").glob("*")
        if link.is_symlink() and os.readlink(link).startswith("socket:[")
    }
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    open_ones = [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]  # 0A: listening
    assert open_ones
    loopback = ("0100007F:", "00000000000000000000000001000000:", "0000000000000000FFFF00000100007F:")
    assert [address for address in open_ones if not address.startswith(loopback)] == []


def test_up_again_changes_nothing(home: Path) -> None:
    before = ClusterHome(home).load()
    shown = helio("up", "--home", home, "--namespace", before.namespace if before else "")
    assert ClusterHome(home).load() == before
    assert "Ray dashboard" in shown
    assert "belongs to the cluster" in helio("up", "--home", home, "--namespace", "other", code=1)


def test_status_shows_every_actor(home: Path) -> None:
    found = helio_json("status", "--home", home, "--wait", "120")
    assert found["healthy"]
    assert [actor["name"] for actor in found["actors"]] == [
        "metadata", "bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "auditor", "gateway",
        "operator",
    ]  # fmt: skip
    assert all(actor["state"] == "ALIVE" and actor["pid"] for actor in found["actors"])
    assert found["bookies_available"] == ["bookie-1", "bookie-2", "bookie-3"]
    assert "bookie-3" in helio("status", "--home", home)


WITHOUT_RAY = (
    ("topics", "create", "spared", "--partitions", "2"),
    ("topics", "list"),
    ("produce", "spared", "one"),
    ("consume", "spared", "-s", "audit", "--from", "earliest", "-n", "1", *PATIENT),
    ("subscriptions", "list", "spared"),
    ("namespaces", "list"),
    ("namespaces", "policies", "get", "public/default"),
    ("tenants", "list"),
    ("schemas", "list", "spared"),
    ("permissions", "list", "public/default"),
    ("brokers", "list"),
    ("bookies", "racks", "list"),
    ("ledgers", "repair-status"),
    ("ledgers", "under-replicated"),
    ("bookies", "scrubs"),
    ("config", "live"),
    ("perf", "produce", "spared", "--messages", "10"),
    ("topics", "delete", "spared", "--force"),
    ("status",),
)
RUN_ALL = """
import json, sys
from heliograph.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["helio", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    assert "ray" not in sys.modules, arguments
print("all done")
"""


def headers_of(state: ClusterState) -> dict[str, str]:
    """Return what Ray's dashboard asks of its users."""
    return {"Authorization": f"Bearer {ray_token()}"} if state.ray_auth_mode == "token" else {}


def test_pages_of_the_dashboard_are_served(home: Path) -> None:
    state = ClusterHome(home).load()
    assert state is not None
    headers = headers_of(state)

    def page(path: str) -> int:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(state.dashboard_url + path, headers=headers, timeout=60).status_code
        return 0

    wait_for(lambda: page("/") == 200, START_SECONDS, "the dashboard does not answer")
    paths = ("/nodes?view=summary", "/logical/actors", "/api/jobs/", "/events", "/api/v0/cluster_events")
    assert {path: page(path) for path in paths} == dict.fromkeys(paths, 200)


def test_commands_that_start_and_end_no_actor_register_no_job_of_ray(home: Path) -> None:
    state = ClusterHome(home).load()
    assert state is not None
    jobs = f"{state.dashboard_url}/api/v0/jobs?detail=1"

    def registered() -> int:
        answer = httpx.get(jobs, headers=headers_of(state), timeout=60)
        return len(answer.json()["data"]["result"]["result"])

    def answers() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return registered() > 0  # that of `helio up`
        return False

    wait_for(answers, START_SECONDS, "the dashboard does not answer")
    before = registered()
    commands = json.dumps([[*command, "--home", str(home)] for command in WITHOUT_RAY])
    run = subprocess.run(
        [sys.executable, "-c", RUN_ALL, commands], capture_output=True, text=True, env=environment(), check=False
    )
    assert "all done" in run.stdout, run.stdout + run.stderr
    assert registered() == before


def test_topics_live_and_die(home: Path, joined: CommandProcess) -> None:
    at = ("--home", home)
    quorums = ("--ensemble-size", "2", "--write-quorum", "2", "--ack-quorum", "1")
    joined.run("topics", "create", "orders", "--partitions", "2", *quorums, *at)
    assert "exists" in joined.run("topics", "create", "orders", *at, code=1)
    listed = joined.json("topics", "list", *at)["topics"]
    assert [topic["partitions"] for topic in listed if topic["name"].endswith("/orders")] == [2]
    assert "orders" in joined.run("topics", "list", *at)
    joined.run("produce", "orders-partition-0", "one", *at)
    assert joined.json("topics", "stats", "orders-partition-0", *at)["msgInCounter"] == 1
    [ledger] = joined.json("topics", "stats", "orders-partition-0", "--internal", *at)["ledgers"]
    assert ledger["ledgerId"] >= 0
    joined.run("topics", "stats", "orders-partition-0", "--internal", *at)
    joined.run("topics", "delete", "orders", *at)
    missing = joined.json("topics", "stats", "orders", *at, code=1)
    assert missing["error"]["type"] == "TopicNotFoundError"
    assert joined.json("topics", "create", "bad//name", *at, code=2)["error"]["type"] == "InvalidTopicNameError"


def test_subscriptions_are_looked_into_and_moved(home: Path, joined: CommandProcess) -> None:
    at = ("--home", home)
    joined.run("subscriptions", "create", "bills", "clerk", *at)  # which makes the topic too
    joined.run("produce", "bills", "one", "two", "--key", "k", *at)
    [first, second] = joined.json("subscriptions", "peek", "bills", "clerk", "--count", "5", *at)["messages"]
    assert (first["payload"], second["payload"], second["key"]) == ("one", "two", "k")
    joined.run("subscriptions", "reset", "bills", "clerk", second["message_id"], *at)
    assert [one["payload"] for one in joined.json("subscriptions", "peek", "bills", "clerk", *at)["messages"]] == [
        "two"
    ]
    joined.run("subscriptions", "skip", "bills", "clerk", *at)
    assert joined.json("subscriptions", "list", "bills", *at)["subscriptions"]["clerk"]["msgBacklog"] == 0


def test_namespaces_policies_and_brokers(home: Path, joined: CommandProcess) -> None:
    at = ("--home", home)
    joined.run("tenants", "create", "acme", *at)
    joined.run("namespaces", "create", "acme/shop", "retention_seconds=60", "--bundles", "2", *at)
    shown = joined.json("namespaces", "policies", "get", "acme/shop", *at)["policies"]
    assert (shown["retention_seconds"], shown["bundles"]) == (60, 2)
    joined.run("produce", "acme/shop/orders", "one", *at)
    owned = next(row for row in joined.json("namespaces", "bundles", "acme/shop", *at)["bundles"] if row["owner"])
    assert len(joined.json("namespaces", "split", "acme/shop", owned["name"], *at)["halves"]) == 2
    joined.run("brokers", "drain", owned["owner"], *at)
    joined.run("brokers", "undrain", owned["owner"], *at)
    joined.run("namespaces", "delete", "acme/shop", "--force", *at)


def test_lines_go_in_and_come_out(home: Path) -> None:
    at = ("--home", home)
    sent = helio_json("produce", "words", "--key-separator", ":", *at, stdin="a:one\nb:two\na:three")
    assert sent["messages"] == 3
    lines = helio("consume", "words", "-s", "s", "--from", "earliest", "-n", "2", "--json", *PATIENT, *at).splitlines()
    assert [(json.loads(line)["key"], json.loads(line)["value"]) for line in lines] == [("a", "one"), ("b", "two")]
    assert helio("consume", "words", "-s", "s", "-n", "1", *PATIENT, *at) == "three\n"
    assert helio("consume", "words", "-s", "s", "--idle", "1", *at) == ""
    assert helio("consume", "words", "--from", "earliest", "-n", "3", *PATIENT, *at) == "one\ntwo\nthree\n"


def test_an_address_is_enough_to_produce_and_consume(home: Path) -> None:
    state = ClusterHome(home).load()
    assert state is not None
    at = ("--address", state.service_url)
    helio("produce", "addressed", "hello", "--property", "colour=red", *at)
    [line] = helio("consume", "addressed", "--from", "earliest", "-n", "1", "--json", *PATIENT, *at).splitlines()
    assert json.loads(line)["properties"] == {"colour": "red"}


def test_a_program_that_does_not_use_ray_finds_the_cluster_without_joining_it(home: Path) -> None:
    program = """
import sys, heliograph
with heliograph.connect() as client, client.producer("plain") as producer:
    producer.send(b"one")
assert "ray" not in sys.modules
"""
    helio("topics", "create", "plain", "--home", home)
    at = environment(HELIOGRAPH_HOME=str(home))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=at, check=False)
    assert run.returncode == 0, run.stderr


def test_perf_measures_what_it_sent_and_finds_all_of_it(home: Path) -> None:
    at = ("--home", home)
    load = ("--messages", "5000", "--size", "1024")
    quorums = ("--ensemble-size", "3", "--write-quorum", "3", "--ack-quorum", "2")
    report = helio_json("perf", "produce", "measured", *load, *quorums, *at)
    assert report["messages"] == 5000
    assert report["errors"] == 0
    assert report["msgs_per_s"] > 0
    assert report["mb_per_s"] > 0
    assert 0 < report["p50_ms"] <= report["p99_ms"]
    found = helio_json("perf", "consume", "measured", "--messages", "5000", *PATIENT, *at)
    assert (found["distinct"], found["missing"], found["foreign"]) == (5000, 0, 0)
    paced = helio_json("perf", "produce", "--messages", "200", "--rate", "400", "--batch-messages", "1", *at)
    assert 0 < paced["msgs_per_s"] < 500
    assert not any("perf-" in topic["name"] for topic in helio_json("topics", "list", *at)["topics"])


def test_a_taken_port_is_named_and_nothing_is_left(home: Path, tmp_path: Path) -> None:
    state = ClusterHome(home).load()
    assert state is not None
    port = state.gateway_url.rpartition(":")[2]
    said = helio("up", "--home", tmp_path, "--broker-port", "0", "--gateway-port", port, code=1)
    assert f"port {port}" in said
    assert "--gateway-port" in said
    assert ClusterHome(tmp_path).load() is None


def test_data_outlives_a_stop_and_a_start(home: Path) -> None:
    at = ("--home", home)
    before = ClusterHome(home).load()
    assert before is not None
    helio("produce", "kept", "before", *at)
    helio("down", *at)
    assert ClusterHome(home).load() is None
    ports = ("--broker-port", "0", "--gateway-port", "0", "--dashboard-port", "0")
    helio("up", *at, "--namespace", before.namespace, "--brokers", "1", "--no-gateway", *ports)
    helio("produce", "kept", "after", *at)
    assert helio("consume", "kept", "--from", "earliest", "-n", "2", *PATIENT, *at) == "before\nafter\n"


@pytest.mark.full
def test_a_lost_head_is_started_again_with_what_was_kept(home: Path) -> None:
    at = ("--home", home)
    before = ClusterHome(home).load()
    assert before is not None
    assert before.ray_process is not None
    helio("produce", "kept-by-disks", "before", *at)
    os.killpg(before.ray_process.pid, signal.SIGKILL)  # `ray start`; what it started is left
    helio("up", *at, "--namespace", before.namespace, "--broker-port", "0", "--dashboard-port", "0", "--no-gateway")
    after = ClusterHome(home).load()
    assert after is not None
    assert after.ray_pid != before.ray_pid
    assert session_members(before.ray_process) == []
    helio("produce", "kept-by-disks", "after", *at)
    assert helio("consume", "kept-by-disks", "--from", "earliest", "-n", "2", *PATIENT, *at) == "before\nafter\n"


def test_down_leaves_no_process_and_no_data(home: Path) -> None:
    state = ClusterHome(home).load()
    assert state is not None
    assert state.ray_process is not None
    assert len(session_members(state.ray_process)) > 8
    assert Path(state.ray_temporary_directory).stat().st_mode & 0o777 == 0o700, "Ray's sockets are below it"
    helio("down", "--home", home, "--delete-data")
    assert session_members(state.ray_process) == []
    assert not state.ray_process.is_alive()
    assert not Path(state.ray_temporary_directory).exists()
    assert not Path(state.data_root).exists()
    assert [path for path in home.glob("disk*/**/*") if path.is_file()] == []
    assert "nothing to stop" in helio("down", "--home", home, code=1)


def test_a_cluster_starts_without_a_bookie_that_cannot_and_gets_it_when_its_disk_is_back(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    from heliograph.cluster.config import ClusterConfig
    from heliograph.cluster.lifecycle import down, up

    data = tmp_path / "data"
    data.mkdir()
    (data / "bookie-2").write_text("a file where a directory should be")
    config = ClusterConfig(
        home=tmp_path / "home",
        data_directory=data,
        namespace="broken",
        brokers=1,
        broker_port=0,
        gateway=False,
        dashboard_port=0,
        start_timeout_ms=START_SECONDS * 1_000,
    )
    lines: list[str] = []
    state = up(config, lines.append)
    assert set(state.not_serving) == {"bookie-2"}
    assert any("bookie-2 does not serve yet" in line and "it keeps trying" in line for line in lines)
    (data / "bookie-2").unlink()
    secret = ClusterHome(tmp_path / "home").secret()
    wait_for(lambda: ask_report(state, secret).is_healthy, 120, "bookie-2 did not come back by itself")
    assert dict(up(config).not_serving) == {}
    down(ClusterHome(tmp_path / "home"), delete_data=True)


def test_a_cluster_of_which_nothing_can_serve_is_not_up(cluster: LiveCluster, tmp_path: Path) -> None:
    from heliograph.base.errors import ResourceError
    from heliograph.cluster.config import ClusterConfig
    from heliograph.cluster.lifecycle import up

    data = tmp_path / "data"
    data.mkdir()
    for number in (1, 2, 3):
        (data / f"bookie-{number}").write_text("a file where a directory should be")
    config = ClusterConfig(
        home=tmp_path / "home",
        data_directory=data,
        namespace="hopeless",
        broker_port=0,
        gateway=False,
        dashboard_port=0,
        start_timeout_ms=START_SECONDS * 1_000,
    )
    with pytest.raises(ResourceError, match="nothing can be served: bookie-1 did not start"):
        up(config)
    wait_for(lambda: not part_names("hopeless"), 120, "actors are left over")


def test_up_joins_the_ray_that_is_named_and_down_leaves_it(cluster: LiveCluster, tmp_path: Path) -> None:
    address = cluster.state.ray_address
    small = ("--bookies", "1", "--ensemble-size", "1", "--write-quorum", "1", "--ack-quorum", "1", "--brokers", "1")
    ports = ("--broker-port", "0", "--gateway-port", "0", "--no-gateway")
    helio("up", "--home", tmp_path, "--namespace", "joined", *small, *ports, RAY_ADDRESS=address)
    state = ClusterHome(tmp_path).load()
    assert state is not None
    assert (state.ray_address, state.ray_pid) == (address, 0)
    helio("produce", "joined", "hello", "--home", tmp_path)
    assert helio_json("topics", "list", "--home", tmp_path)["topics"][0]["name"].endswith("/joined")
    assert helio_json("status", "--home", tmp_path, "--wait", "120")["namespace"] == "joined"
    helio("down", "--home", tmp_path, "--delete-data")
    assert "no Heliograph" in helio("status", "--namespace", "joined", code=1, RAY_ADDRESS=address)
    assert cluster.pid("broker-1") > 0


def test_a_start_that_was_killed_is_cleared_away_by_down(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    ports = ("--broker-port", "0", "--gateway-port", "0", "--dashboard-port", "0")
    with subprocess.Popen(
        [HELIO, "up", "--home", tmp_path, *ports], stdout=subprocess.DEVNULL, env=environment()
    ) as up:
        wait_for(lambda: home.load() is not None, 120, "nothing was noted")
        up.kill()
    state = home.load()
    assert state is not None
    assert state.ray_process is not None
    assert session_members(state.ray_process) != []
    helio("down", "--home", tmp_path)
    assert session_members(state.ray_process) == []
    assert not Path(state.ray_temporary_directory).exists()


@pytest.mark.parametrize("victim", ["bookie", pytest.param("broker", marks=pytest.mark.full)])
def test_a_kill_during_perf_loses_nothing(cluster: LiveCluster, topic: str, victim: str) -> None:
    cluster.admin.create_topic(topic)
    at = ("--home", str(cluster.home))
    load = ("--messages", "15000", "--size", "1024", "--rate", "3000", "--json")
    with subprocess.Popen(
        [HELIO, "perf", "produce", topic, *load, *at], stdout=subprocess.PIPE, text=True, env=environment()
    ) as run:
        wait_for(lambda: cluster.admin.topic_stats(topic)["msgInCounter"] > 3000, 120, "nothing was published")
        name = cluster.admin.lookup(topic)["actor_name"] if victim == "broker" else "bookie-1"
        old_pid = cluster.sigkill(name)
        printed, _ = run.communicate(timeout=300)
    report = json.loads(printed)
    assert (report["messages"], report["errors"]) == (15000, 0)
    found = helio_json("perf", "consume", topic, "--messages", "15000", *PATIENT, *at)
    assert (found["distinct"], found["missing"]) == (15000, 0)  # I1
    cluster.wait_back(name, old_pid)

"""A real Prometheus reads a cluster in one process: every panel of the boards shows something, and what breaks arrives
at a receiver of a real Alertmanager."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.cluster.ports import pick_free
from heliograph.metadata.backends.embedded.server.connection import EmbeddedConnection
from heliograph.monitoring.alerts import ALERTS
from heliograph.monitoring.boards import BOARDS
from heliograph.monitoring.prometheus import RULES_FILE, configuration, rules
from heliograph.standalone.local import LocalCluster
from tests.prometheus_server import metric_problems, program
from tests.unit.standalone.test_watching import Hook

pytestmark = pytest.mark.slow

# A cluster in one process has no auditor and no operator, nothing watches its loop, and nobody has a WebSocket session.
EMPTY = ("heliograph_auditor_", "heliograph_operator_", "heliograph_part_loop_", "heliograph_gateway_sessions")
SECONDS_MAX = 120


def get(url: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=60) as answer:
        return json.load(answer)["data"]


def write_configuration(config_text: str, directory: Path, seconds: int, rules_text: str, **more: Any) -> None:
    """Have a Prometheus scrape every so often, and look at rules each second."""
    config = json.loads(config_text)
    config["global"] = {"scrape_interval": f"{seconds}s", "scrape_timeout": f"{seconds}s", "evaluation_interval": "1s"}
    (directory / "prometheus.yml").write_text(json.dumps(config | more))
    (directory / RULES_FILE).write_text(rules_text)


@contextlib.contextmanager
def running(directory: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a directory, with its log there."""
    with (directory / f"{Path(command[0]).name}.log").open("wb") as file:
        server = subprocess.Popen(command, cwd=directory, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield server
    finally:
        server.terminate()
        server.wait(60)


@contextlib.contextmanager
def prometheus(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Run a Prometheus; yield the address of its API, and what has it read its configuration again."""
    address = f"127.0.0.1:{pick_free()}"
    command = [program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with running(directory, *command, f"--web.listen-address={address}") as server:
        yield f"http://{address}/api/v1", lambda: server.send_signal(signal.SIGHUP)


BOARDS_OF_OTHERS = Path(__file__).parents[1] / "metrics" / "boards"
VARIABLE = re.compile(r"\$\w+")
# What boards of others ask and do not get, by a part of the expression, and why.
NOT_GIVEN = {
    "pulsar_txn_": "there are no transactions, and Pulsar itself has these names no more",
    "pulsar_replication_": "topics are not replicated to other clusters",
    "pulsar_storage_backlog_quota_limit": "no quota is set in this cluster, and none of ours is given",
    "pulsar_storage_read_": "we count reads, not the entries of a topic that are read",
    "bookie_storage_": "names that BookKeeper gave up with release 4.9",
    "bookie_ledger_dir_": "the name holds a path of one Kubernetes image; heliograph_bookie_disk_used_share",
    "bookie_entries_count": "bookies do not count what they hold",
    "bookie_ledger_writable_dirs": "a bookie is read-only as a whole",
    "bookie_RECLAIMED_": "what compaction frees is not counted",
    "_IN_PROGRESS": "adds and reads under way are not counted",
    "_BLOCKED": "adds and reads are not blocked, they are refused",
    "JOURNAL_QUEUE_": "counted in bytes: heliograph_bookie_journal_queue_bytes",
    "JOURNAL_FORCE_WRITE_QUEUE_SIZE": "a journal has one queue",
    "JOURNAL_CB_QUEUE_SIZE": "a journal has one queue",
    'quantile="1"': "the summary has the label 1.0",
    "node_": "of another exporter",
    "kubelet_": "of Kubernetes",
    'job="zookeeper"': "the metadata store is no ZooKeeper",
    'job="proxy"': "there is no proxy",
    'job="function"': "there are no functions",
    'job="bookie"': "in one process the gateway alone is scraped: up has no bookie",
    'job="broker", cluster=~"$cluster"})': "the same: up has no broker",
    'up{job="broker"': "the same",
    'bookie_SERVER_STATUS{cluster=~"$cluster", kubernetes_pod_name=~"$kubernetes_pod_name"} == 0': "none is read-only",
}


def pulsar_boards_without_data(api: str) -> list[str]:
    """Return what two public sets of boards ask, get nothing for, and is not in the list of what is not given; or is
    in the list and given."""
    wrong = []
    for file in sorted(BOARDS_OF_OTHERS.glob("*.txt")):
        for line in file.read_text().splitlines():
            if not line or line.startswith("#"):
                continue
            asked = VARIABLE.sub(".*", line).replace("[30s]", "[1m]")
            is_given = bool(get(f"{api}/query", query=asked)["result"])
            if is_given == any(part in line for part in NOT_GIVEN):
                wrong.append(f"{file.stem}, {'given' if is_given else 'empty'}: {line}")
    return wrong


def scrapes(api: str) -> int:
    """Return how many scrapes Prometheus has made that went well."""
    with contextlib.suppress(OSError):
        found = get(f"{api}/query", query='sum_over_time(up{job="heliograph"}[1h])')["result"]
        return int(float(found[0]["value"][1])) if found else 0
    return 0


def test_every_panel_shows_something_and_no_alert_fires(tmp_path: Path) -> None:
    with heliograph.local(tmp_path / "cluster", bookies=3) as cluster, cluster.connect() as client:
        client.admin.settings.set("probe_seconds", "0.2")
        producer, consumer = client.producer("orders"), client.consumer("orders", "audit")
        with client.producer("orders-audit-DLQ") as dead:
            dead.send(b"x")
        write_configuration(configuration(cluster.http_url, with_pulsar_names=True), tmp_path, 1, rules())
        with prometheus(tmp_path) as (api, _):
            deadline = time.monotonic() + SECONDS_MAX
            while scrapes(api) < 5:
                assert time.monotonic() < deadline, "Prometheus scrapes nothing"
                for _ in range(30):
                    producer.send(b"x")
                    consumer.ack(consumer.receive(timeout=60))
                urllib.request.urlopen(f"{cluster.http_url}/health", timeout=60).read()
                time.sleep(0.2)
            with urllib.request.urlopen(f"{cluster.http_url}/metrics", timeout=60) as answer:
                assert metric_problems(answer.read().decode()) == ""
            assert pulsar_boards_without_data(api) == []
            silent = [
                f"{board.name}: {panel.title}"
                for board in BOARDS
                for panel in board.panels
                for query in panel.queries.values()
                if not get(f"{api}/query", query=query.replace("$namespace", ".*"))["result"]
                and not any(name in query for name in EMPTY)
            ]
            assert silent == []
            found = get(f"{api}/rules")["groups"]
            loaded = {rule["name"]: rule["health"] for group in found for rule in group["rules"]}
            assert {alert.name for alert in ALERTS} <= loaded.keys()
            assert {*loaded.values()} == {"ok"}
            firing = [alert["labels"] for alert in get(f"{api}/alerts")["alerts"] if alert["state"] == "firing"]
            assert firing == []


LASTING_MS_MIN = 3_000  # of an alert: on a busy machine a scrape fails now and then
DURATION = re.compile(r"(\d+)([smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
# A busy machine is slow for the 3 s that 5 minutes are here. Rule tests of promtool have these.
OF_A_BUSY_MACHINE = {"HeliographSlowJournal", "HeliographSlowMetadata", "HeliographSlowPublish"}
FREE, TOTAL = 90 << 30, 100 << 30  # bytes of a disk


def shortened(text: str, factor: int) -> str:
    """Return rules that look back, and last, only so long as the given ones divided by a factor."""

    def shorter(found: re.Match[str]) -> str:
        return f"{max(int(found[1]) * SECONDS[found[2]] * 1_000 // factor, LASTING_MS_MIN)}ms"

    made = json.loads(text)
    for rule in (rule for group in made["groups"] for rule in group["rules"]):
        rule["expr"] = re.sub(r"(?<=\[)\d+[smhd](?=\])", lambda found: DURATION.sub(shorter, found[0]), rule["expr"])
        if "for" in rule:
            rule["for"] = DURATION.sub(shorter, rule["for"])
    return json.dumps(made)


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


class SilentStore:
    """Has the metadata store of this process keep connections and answer nothing, until it is to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_silent = False
        self._held: list[tuple[EmbeddedConnection, bytes]] = []
        self._answer = EmbeddedConnection.data_received

        def received(connection: EmbeddedConnection, data: bytes) -> None:
            if self.is_silent:
                self._held.append((connection, data))
            else:
                self._answer(connection, data)

        monkeypatch.setattr(EmbeddedConnection, "data_received", received)

    async def go_on(self) -> None:
        self.is_silent = False
        for connection, data in self._held:
            self._answer(connection, data)


class Pager:
    """A receiver of alerts behind an Alertmanager, and what it expects."""

    def __init__(self, hook: Hook, api: str) -> None:
        self._hook = hook
        self._api = api
        self._expected: set[tuple[str, str]] = set()

    @property
    def received(self) -> set[tuple[str, str]]:
        """The alerts that arrived: name, and which part or subscription it is about."""
        alerts = [each["labels"] for body in self._hook.bodies for each in body["alerts"] if each["status"] == "firing"]
        about = ("part", "bookie", "subscription", "broker")
        found = {(each["alertname"], next((each[name] for name in about if name in each), "")) for each in alerts}
        return {each for each in found if each[0] not in OF_A_BUSY_MACHINE}

    def expect(self, *alerts: tuple[str, str]) -> None:
        """Wait until these have arrived besides those before; nothing else has, nor does in the next seconds."""
        self._expected.update(alerts)
        until(lambda: self._expected <= self.received, f"{self._expected - self.received} did not arrive")
        looks: set[str] = set()

        def has_looked_again() -> bool:
            looks.add(get(f"{self._api}/rules")["groups"][-1]["lastEvaluation"])
            return len(looks) > 2

        until(has_looked_again, "Prometheus looks at the rules no more")
        assert self.received == self._expected


@contextlib.contextmanager
def pager(directory: Path, cluster: LocalCluster) -> Iterator[tuple[Pager, Callable[[int, int], None]]]:
    """Run a Prometheus, an Alertmanager and a receiver; yield the receiver and what shortens the rules by a factor,
    and scrapes every so many seconds."""
    hook = Hook(200)
    routes = {"receiver": "pager", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
    receivers = [{"name": "pager", "webhook_configs": [{"url": hook.url, "send_resolved": False}]}]
    (directory / "alertmanager.yml").write_text(json.dumps({"route": routes, "receivers": receivers}))
    address = f"127.0.0.1:{pick_free()}"
    command = [program("prometheus-alertmanager"), "--config.file=alertmanager.yml", "--storage.path=alerts"]
    alerting = {"alertmanagers": [{"static_configs": [{"targets": [address]}]}]}

    def write(factor: int, seconds: int) -> None:
        text = shortened(rules(), factor) if factor else "{}"
        write_configuration(configuration(cluster.http_url), directory, seconds, text, alerting=alerting)

    write(0, 1)
    try:
        with (
            running(directory, *command, f"--web.listen-address={address}", "--cluster.listen-address="),
            prometheus(directory) as (api, read_again),
        ):

            def shorten(factor: int, seconds: int) -> None:
                write(factor, seconds)
                read_again()

            until(lambda: scrapes(api) > 0, "Prometheus scrapes nothing")
            shorten(100, 1)
            until(lambda: bool(get(f"{api}/rules")["groups"]), "Prometheus has no rules")
            yield Pager(hook, api), shorten
    finally:
        hook.close()


def test_what_breaks_arrives_at_a_receiver_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full: set[str] = set()  # bookies; the disk of this machine decides nothing
    monkeypatch.setattr(RealDisk, "space", lambda _, path: (0 if full & {*path.parts} else FREE, TOTAL))
    store = SilentStore(monkeypatch)
    with (
        heliograph.local(tmp_path / "cluster", bookies=5, replication=3, bookie={"space_check_ms": 200}) as cluster,
        cluster.connect() as client,
    ):
        client.admin.namespaces.set_policies("public/default", {"backlog_quota_seconds": 1})
        producer, consumer = client.producer("orders"), client.consumer("orders", "audit")
        producer.send(b"x")
        consumer.ack(consumer.receive(timeout=60))
        with pager(tmp_path, cluster) as (receiver, shorten):
            receiver.expect()
            bookies, thread = cluster._parts._bookies, cluster._thread
            assert thread is not None
            thread.run(bookies.pop("bookie-5").stop())
            receiver.expect(("HeliographPartDown", "bookie-5"))
            full.add("bookie-4")
            receiver.expect(("HeliographDiskFull", "bookie-4"))
            consumer.close()
            producer.send(b"x")
            receiver.expect(("HeliographOldestUnacknowledged", "audit"))
            # An answer of the gateway takes 2 s now, and half a minute passes until nothing else says what is wrong.
            shorten(5, 4)
            store.is_silent = True
            try:
                receiver.expect(("HeliographMetadataAway", "broker-1"))
            finally:
                thread.run(store.go_on())

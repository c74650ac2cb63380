"""``helio doctor``: each check finds what would fail, says the way out, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import resource
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.base import version
from heliograph.base.errors import VersionMismatchError
from heliograph.base.home import ClusterHome, ClusterState, boot_id
from heliograph.base.processes import ProcessName
from heliograph.base.tls.authority import CertificateAuthority
from heliograph.base.version import heliograph_version, release_of
from heliograph.cli.app import app
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.doctor import machine, running, secrecy, versions
from heliograph.cluster.doctor.finding import CheckResult, Severity
from heliograph.cluster.hosting import own_facts
from heliograph.cluster.naming import stranger_note
from heliograph.cluster.operator.storage import save_report
from heliograph.metadata.codec import encode
from heliograph.metadata.connect import connect_store
from heliograph.metadata.operator_records import OperatorReport, RestoredMark
from heliograph.metadata.paths import RESTORED
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore

OK, WARNING, PROBLEM = Severity.OK, Severity.WARNING, Severity.PROBLEM
NODE = ClusterState("n", "127.0.0.1:1", "", node_address="10.0.0.2")  # a machine that joined; nothing listens there


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HELIOGRAPH_")] + ["PYTHONOPTIMIZE"]:
        monkeypatch.delenv(name, raising=False)


def config_of(home: Path, **settings: Any) -> ClusterConfig:
    return ClusterConfig(home=home, **settings)


def severities(findings: Any) -> dict[str, Severity]:
    return {finding.check: finding.severity for finding in findings}


def test_the_machine_of_the_tests_can_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_python().severity is OK
    assert machine.check_ray().severity is OK
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    assert machine.check_python().severity is PROBLEM


@pytest.mark.parametrize(
    ("version", "severity"), [("2.9.3", PROBLEM), ("2.59.1", OK), ("2.99.0", WARNING), ("3.0.0", WARNING)]
)
def test_releases_of_ray(monkeypatch: pytest.MonkeyPatch, version: str, severity: Severity) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert machine.check_ray().severity is severity


@pytest.mark.parametrize(
    ("version", "bounds", "is_within"),
    [
        ("3.13", "<3.14,>=3.11", True),
        ("3.14", "<3.14,>=3.11", False),
        ("3.9", ">=3.11", False),
        ("3.1", "", True),
    ],
)
def test_versions_are_compared_by_number(version: str, bounds: str, is_within: bool) -> None:
    assert machine._is_within(version, bounds) is is_within


@pytest.mark.parametrize(
    ("soft", "severity"),
    [(1_024, PROBLEM), (20_000, WARNING), (65_536, OK), (resource.RLIM_INFINITY, OK)],
)
def test_open_files(monkeypatch: pytest.MonkeyPatch, soft: int, severity: Severity) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, resource.RLIM_INFINITY))
    assert machine.check_open_files().severity is severity


@pytest.mark.parametrize(("left", "severity"), [(200, Severity.OK), (99, Severity.WARNING)])
def test_a_machine_with_little_memory_left_is_warned_of(left: int, severity: Severity) -> None:
    found = machine.check_memory(f"MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:   {left} kB\n")
    assert found.severity is severity
    assert machine.check_memory().check == "memory"


def test_a_disk_is_measured_once(tmp_path: Path) -> None:
    assert machine.separate_disks((tmp_path / "a", tmp_path)) == [tmp_path / "a"]


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = list(machine.check_disk(tmp_path / "not" / "yet", full_share=1.0, headroom_bytes=0))
    assert [finding.check.partition(" ")[0] for finding in found][-2:] == ["disk", "fsync"]
    assert "of 100 writes" in found[-1].found
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_problem(tmp_path: Path) -> None:
    found = list(machine.check_disk(tmp_path, full_share=0.0, headroom_bytes=1 << 60))
    assert f"disk of {tmp_path}" in {finding.check for finding in found if finding.severity is PROBLEM}


@pytest.mark.parametrize(("milliseconds", "severity"), [(1.0, OK), (50.0, WARNING), (400.0, PROBLEM)])
def test_a_slow_disk_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, milliseconds: float, severity: Severity
) -> None:
    monkeypatch.setattr(machine, "sync_times_ms", lambda directory: [0.1] * 98 + [milliseconds] * 2)
    assert machine._check_sync(tmp_path, tmp_path).severity is severity


def test_memory_is_no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_file_system", lambda directory: "tmpfs")
    first = next(machine.check_disk(tmp_path, full_share=1.0, headroom_bytes=0))
    assert first.severity is PROBLEM


def test_files_that_others_can_read_are_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    secret = home / "cluster.secret"
    secret.write_text("x")
    secret.chmod(0o644)
    assert secrecy.check_modes(config_of(home)).severity is OK  # nobody else can enter the directory
    home.chmod(0o755)
    found = secrecy.check_modes(config_of(home))
    assert found.severity is PROBLEM
    assert str(secret) in found.found
    assert secrecy.check_modes(config_of(tmp_path / "none")).severity is OK


def test_certificates_that_end(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    now = datetime.datetime.now(datetime.UTC)
    assert list(secrecy.check_certificates(config, now)) == []
    authority = CertificateAuthority(tmp_path / "certificates")
    authority.ensure(["127.0.0.1"])
    ends = min(facts.ends for facts in authority.facts())
    for days, severity in ((60, OK), (10, WARNING), (-1, PROBLEM)):
        (found,) = secrecy.check_certificates(config, ends - datetime.timedelta(days=days))
        assert found.severity is severity


def test_strangers(tmp_path: Path) -> None:
    assert secrecy.check_strangers(config_of(tmp_path)).severity is OK
    assert secrecy.check_strangers(config_of(tmp_path, host="0.0.0.0")).severity is PROBLEM
    assert secrecy.check_strangers(config_of(tmp_path, host="0.0.0.0", insecure=True)).severity is WARNING


def test_ports(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = config_of(tmp_path, broker_port=taken.getsockname()[1], gateway_port=0)
        assert severities(running.check_ports(config, is_running=False)) == {"broker_port": PROBLEM}
        assert severities(running.check_ports(config, is_running=True)) == {"broker_port": OK}


def test_a_recorded_ray_that_is_gone() -> None:
    assert running.check_ray_answers(None).severity is OK
    gone = running.check_ray_answers(ClusterState("n", "127.0.0.1:1", ""))
    assert gone.severity is PROBLEM


def test_a_recorded_ray_that_has_ended_is_started_again_by_helio_up() -> None:
    """A problem would keep the service of the head from running ``helio up`` after a power cut."""
    ended = running.check_ray_answers(ClusterState("n", "127.0.0.1:1", "", ray_pid=os.getpid(), boot_id="before"))
    assert (ended.severity, ended.way_out) == (WARNING, "`helio up` starts it again: data stays")


def test_a_machine_that_joined_is_not_to_start_another_cluster() -> None:
    away = running.check_ray_answers(NODE)
    assert away.severity is WARNING
    assert "the head of the cluster that this machine joined as 10.0.0.2" in away.found
    assert "start the head on its own machine" in away.way_out
    callers = secrecy.callers_elsewhere(NODE)
    assert callers.severity is WARNING
    assert "127.0.0.1" in callers.way_out, "the machine whose settings decide"


def test_a_cluster_in_one_process_has_no_ray_to_answer() -> None:
    process = ProcessName.of(os.getpid())
    assert process is not None
    own = ClusterState("n", "", "", own_pid=process.pid, own_start_ticks=process.start_ticks, boot_id=boot_id())
    assert "without Ray" in running.check_ray_answers(own).found
    ended = running.check_ray_answers(replace(own, own_start_ticks=process.start_ticks + 1))
    assert (ended.severity, ended.found) == (OK, "none runs from this home")


def facts(**changed: Any) -> dict[str, Any]:
    return {**own_facts(), "node": "a", "open_files_max": 65_536, "round_ms": 4.0, "skew_ms": 1.0, **changed}


def test_parts_of_one_version_and_one_time() -> None:
    found = severities(running.judged({"bookie-1": facts(), "broker-1": facts(node="b")}))
    assert found == {"versions": OK, "clocks": OK}


def test_parts_that_differ() -> None:
    parts = {
        "bookie-1": facts(version="0.0.1", open_files_max=256),
        "bookie-2": facts(formats={"bookie protocol": 0}),
        "broker-1": facts(node="b", skew_ms=-900.0, round_ms=100.0),
    }
    found: list[CheckResult] = list(running.judged(parts))
    assert severities(found) == {"versions": WARNING, "open files of parts": PROBLEM, "clocks": WARNING}
    assert "850 ms" in found[-1].found  # less the time of the call
    assert found[0].found == f"here {heliograph_version()}, but bookie-1 0.0.1; other formats than here: bookie-2"
    far = release_of(heliograph_version())
    apart = versions.check_versions({"b": facts(version=f"{far.major}.{far.minor + 2}.0")})
    assert apart.severity is PROBLEM
    assert severities(running.judged({"b": facts(skew_ms=9_000.0)}))["clocks"] is PROBLEM


def test_a_rolling_restart_goes_by_one_minor_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "VERSION", "0.2.0")
    parts = {"bookie-1": facts(version="0.1.0"), "broker-1": facts(version="0.2.0")}
    versions.require_upgradable(parts, {"a": "0.2.0", "b": "0.2.0"})
    with pytest.raises(VersionMismatchError, match=r"here 0\.2\.0 is installed, but b has 0\.1\.0: install"):
        versions.require_upgradable(parts, {"a": "0.2.0", "b": "0.1.0"})
    with pytest.raises(VersionMismatchError, match="b has none that answers"):
        versions.require_upgradable(parts, {"a": "0.2.0", "b": ""})
    with pytest.raises(VersionMismatchError, match=r"0\.2\.0 is installed, but broker-2 has 0\.4\.0"):
        versions.require_upgradable({**parts, "broker-2": facts(version="0.4.0")}, {"a": "0.2.0"})


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_it_works_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_BROKER_PORT", "0")
    monkeypatch.setenv("HELIOGRAPH_GATEWAY_PORT", "0")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (65_536, 65_536))
    monkeypatch.setattr(machine, "check_disk", lambda *arguments: iter(()))
    shown = run("--home", str(tmp_path / "home"), "--json")
    result = json.loads(shown.output)
    assert [finding for finding in result["findings"] if finding["severity"] == "problem"] == []
    assert result["healthy"]
    assert shown.exit_code == 0
    assert not (tmp_path / "home").exists()


def test_a_head_needs_no_secret_before_its_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``helio up`` makes the secret, and the service of the head runs ``helio doctor`` before it."""
    for name, value in {"BROKER_PORT": "0", "GATEWAY_PORT": "0", "HOST": "node", "INSECURE": "1"}.items():
        monkeypatch.setenv(f"HELIOGRAPH_{name}", value)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (65_536, 65_536))
    monkeypatch.setattr(machine, "check_disk", lambda *arguments: iter(()))
    shown = run("--home", str(tmp_path / "home"), "--json")
    findings = json.loads(shown.output)["findings"]
    assert [finding for finding in findings if finding["severity"] == "problem"] == []
    assert shown.exit_code == 0
    assert not (tmp_path / "home").exists()


def test_a_machine_that_joined_is_judged_by_what_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = ClusterHome(tmp_path / "home")
    home.prepare()
    home.save(replace(NODE, metadata_url="heliograph://127.0.0.1:1"))
    monkeypatch.setattr(machine, "check_disk", lambda *arguments: iter(()))
    findings = {
        each["check"]: each for each in json.loads(run("--home", str(home.directory), "--json").output)["findings"]
    }
    assert findings["callers"]["severity"] == findings["cluster"]["severity"] == "warning"
    assert not findings.keys() & {"broker_port", "gateway_port"}, "those are of the machine of helio up"


def test_wrong_settings_are_a_problem_with_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("bookies = 0\n")
    shown = run("--home", str(tmp_path), "--json")
    assert shown.exit_code == 1
    last = json.loads(shown.output)["findings"][-1]
    assert (last["check"], last["severity"]) == ("settings", "problem")


def test_metadata_that_was_restored_waits_for_a_decision() -> None:
    url = "memory://doctor-of-restored"

    async def mark() -> None:
        store = await connect_store(url)
        await initialise(store)
        await store.create(RESTORED, encode(RestoredMark(1_700_000_000_000, 1_700_000_000_001)))
        await store.close()

    assert [each.severity for each in running.check_metadata(url, None)] == [Severity.OK]
    asyncio.run(mark())
    [found] = running.check_metadata(url, None)
    assert found.severity is Severity.WARNING
    assert "2023-11-14" in found.found
    assert "helio backup accept" in found.way_out


def test_what_the_operator_notes_is_a_warning() -> None:
    url = "memory://doctor-of-notes"
    note = stranger_note("broker-7", "heliograph")

    async def report() -> MetadataStore:
        store = await connect_store(url)
        await initialise(store)
        await save_report(store, OperatorReport("operator", (note,), {}, {}))
        return store

    with asyncio.Runner() as runner:
        store = runner.run(report())
        answer, warned = running.check_metadata(url, None)
        runner.run(store.close())
    assert answer.severity is Severity.OK
    assert (warned.severity, warned.found) == (Severity.WARNING, note)
    assert "broker-7" in note


def test_metadata_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "ANSWER_SECONDS", 0.2)
    [found] = running.check_metadata("embedded://127.0.0.1:1", None)
    assert found.severity is Severity.PROBLEM

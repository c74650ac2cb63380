"""``helio doctor``: each check finds what would fail, says the way out, and leaves nothing behind."""

from __future__ import annotations

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
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.processes import ProcessName
from heliograph.base.system.processes import boot_id
from heliograph.base.tls.authority import CertificateAuthority
from heliograph.base.version import heliograph_version, release_of
from heliograph.cli.app import app
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.doctor import machine, running, secrecy, versions
from heliograph.cluster.doctor.finding import CheckResult, Severity
from heliograph.cluster.hosting import own_facts
from heliograph.cluster.naming import stranger_note
from heliograph.metadata.operator_records import ClusterReport, PartReport

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
    found = machine.check_memory((left << 10, 1000 << 10))
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
    monkeypatch.setattr(machine, "file_system_of", lambda directory: "tmpfs")
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


def told(name: str, **changed: Any) -> PartReport:
    own = own_facts()
    part = PartReport(
        name, name.partition("-")[0], "ALIVE", home="a", version=own["version"], installed=own["installed"],
        formats=own["formats"], open_files_max=65_536, skew_ms=1.0, round_ms=4.0,
    )  # fmt: skip
    return replace(part, **changed)


def reported(*parts: PartReport, **fields: Any) -> list[CheckResult]:
    report = ClusterReport("operator", 1, parts=parts, underreplicated_ledgers=0)
    return list(running.check_report(replace(report, **fields)))


def test_parts_of_one_version_and_one_time() -> None:
    found = reported(told("bookie-1"), told("broker-1", home="b"))
    assert severities(found) == dict.fromkeys(("metadata", "parts", "versions", "installed", "clocks"), OK)
    installed = next(each for each in found if each.check == "installed")
    assert installed.found == f"2 nodes with parts have {heliograph_version()}"


def test_parts_that_differ() -> None:
    found = reported(
        told("bookie-1", version="0.0.1", open_files_max=256),
        told("bookie-2", formats={"bookie protocol": 0}),
        told("broker-1", home="b", skew_ms=-900.0, round_ms=100.0, installed="9.9.9"),
    )
    assert severities(found) == {
        "metadata": OK,
        "parts": OK,
        "versions": WARNING,
        "installed": WARNING,
        "open files of parts": PROBLEM,
        "clocks": WARNING,
    }
    assert "850 ms" in found[-1].found  # less the time of the call
    shown = next(each.found for each in found if each.check == "versions")
    assert shown == f"here {heliograph_version()}, but bookie-1 0.0.1; other formats than here: bookie-2"
    far = release_of(heliograph_version())
    apart = versions.check_versions([told("b", version=f"{far.major}.{far.minor + 2}.0")])
    assert apart.severity is PROBLEM
    assert severities(reported(told("b", skew_ms=9_000.0)))["clocks"] is PROBLEM


def test_a_part_that_is_not_well_is_a_problem_and_one_that_leaves_is_none() -> None:
    dead = told("bookie-1", note="does not start: its disk is dead")
    leaving = told("bookie-2", note="being decommissioned", is_leaving=True)
    found = {each.check: each for each in reported(dead, leaving, underreplicated_ledgers=3)}
    assert (found["parts"].severity, found["parts"].found) == (PROBLEM, f"bookie-1: {dead.note}")
    assert found["ledgers"].severity is WARNING
    assert severities(reported(leaving))["parts"] is OK


def test_an_operator_that_is_silent_is_a_problem_and_so_is_no_report() -> None:
    found = reported(PartReport("bookie-1", "bookie"), is_silent=True, notes=("operator is silent since noon",))
    assert severities(found) == {"operator": PROBLEM, "parts": OK}
    assert found[0].found == "operator is silent since noon"
    (nothing,) = reported(is_silent=True, notes=("the gateway tells nothing",))
    assert (nothing.check, nothing.severity, nothing.found) == ("report", PROBLEM, "the gateway tells nothing")


def test_a_rolling_restart_goes_by_one_minor_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "VERSION", "0.2.0")
    parts = {"bookie-1": {"version": "0.1.0"}, "broker-1": {"version": "0.2.0"}}
    versions.require_upgradable(parts, {"a": "0.2.0", "b": "0.2.0"})
    with pytest.raises(VersionMismatchError, match=r"here 0\.2\.0 is installed, but b has 0\.1\.0: install"):
        versions.require_upgradable(parts, {"a": "0.2.0", "b": "0.1.0"})
    with pytest.raises(VersionMismatchError, match="b has none that answers"):
        versions.require_upgradable(parts, {"a": "0.2.0", "b": ""})
    with pytest.raises(VersionMismatchError, match=r"0\.2\.0 is installed, but broker-2 has 0\.4\.0"):
        versions.require_upgradable({**parts, "broker-2": {"version": "0.4.0"}}, {"a": "0.2.0"})


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
    assert severities(reported(told("bookie-1")))["metadata"] is OK
    found = reported(told("bookie-1"), restored_backup_ms=1_700_000_000_000)
    (waiting,) = (each for each in found if each.severity is WARNING)
    assert "2023-11-14" in waiting.found
    assert "helio backup accept" in waiting.way_out


def test_what_the_operator_notes_is_a_warning() -> None:
    note = stranger_note("broker-7", "heliograph")
    *_, warned = reported(told("bookie-1"), notes=(note,))
    assert (warned.severity, warned.found) == (WARNING, note)
    assert "broker-7" in note

"""Checks of files that others must not read, of certificates that end, and of doors that are open to strangers."""

from __future__ import annotations

import datetime
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from heliograph.base.errors import HeliographError
from heliograph.base.home import LOGS, ClusterHome, ClusterState
from heliograph.base.tls.authority import DIRECTORY as CERTIFICATES
from heliograph.base.tls.authority import CertificateAuthority
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.doctor.finding import CheckResult, ok, problem, warning
from heliograph.cluster.doctor.stranger import Attempt, PartDoor
from heliograph.cluster.lifecycle import check_doors, check_exposure
from heliograph.cluster.settings.location import FILE_NAME
from heliograph.metadata.backends.etcd.wire.address import SCHEMES as ETCD_SCHEMES
from heliograph.metadata.connect import EMBEDDED_SCHEMES
from heliograph.metadata.operator_records import ClusterReport

OTHERS = 0o077  # the bits of group and others
FILES_CHECKED_MAX = 10_000  # I15
SHOWN_MAX = 5  # parts in one finding
ENDING_DAYS = 30
DIRECTORIES = (".", CERTIFICATES, LOGS)  # below the home


def check_modes(config: ClusterConfig) -> CheckResult:
    """Check that only this user can look into the cluster's home, its secrets, logs and data."""
    home = config.home_directory
    if not home.exists():
        return ok("file modes", f"{home} does not exist yet")
    foreign = [path for path in _closed_paths(config) if _owner(path) not in (os.geteuid(), None)]
    if foreign:
        return problem("file modes", f"of another user: {_some(foreign)}", "run helio as the user who started it")
    wide = [path for path in _closed_paths(config) if _is_open(path)]
    if wide:
        return problem("file modes", f"open to others: {_some(wide)}", "chmod -R go= on these")
    return ok("file modes", f"{home} is closed to others")


def check_certificates(config: ClusterConfig, now: datetime.datetime) -> Iterator[CheckResult]:
    """Check when the certificates end that ``helio up --tls auto`` made."""
    directory = config.home_directory / CERTIFICATES
    if not directory.is_dir():
        return
    try:
        facts = CertificateAuthority(directory).facts()
    except (HeliographError, OSError, ValueError) as error:
        yield problem("certificates", str(error), "helio certs renew")
        return
    first = min(facts, key=lambda fact: fact.ends, default=None)
    if first is None:
        return
    left = (first.ends - now).days
    found = f"{first.file} ends on {first.ends:%Y-%m-%d}"
    if left < 0:
        yield problem("certificates", found, "helio certs renew")
    elif left < ENDING_DAYS:
        yield warning("certificates", found, "helio certs renew")
    else:
        yield ok("certificates", found)


def check_strangers(config: ClusterConfig) -> CheckResult:
    """Check who would be let in by the settings."""
    try:
        check_exposure(config)
        check_doors(config)
    except HeliographError as error:
        return problem("callers", str(error), "see the settings that it names, in docs/operations/security.md")
    if config.auth_config().is_enabled:
        return ok("callers", "have to be authenticated (auth.enabled); nothing runs that could be tried")
    if config.insecure:
        return warning("callers", "may do everything (insecure)", "set auth.enabled, see docs/operations/security.md")
    return ok("callers", f"are programs of this machine ({config.host}), and may do everything")


def doors_of(state: ClusterState, report: ClusterReport) -> list[PartDoor]:
    doors = []
    scheme, _, rest = state.metadata_url.partition("://")
    if scheme in (*ETCD_SCHEMES, *EMBEDDED_SCHEMES):
        kind = "etcd" if scheme in ETCD_SCHEMES else "metadata"
        places = rest.split("/")[0].split("?")[0].rpartition("@")[2].split(",")
        doors += [PartDoor("metadata", kind, f"{scheme}://{place}") for place in places]
    doors += [PartDoor(part.name, "bookie", part.address) for part in report.parts if part.kind == "bookie"]
    brokers = [PartDoor(part.name, "broker", part.address) for part in report.parts if part.kind == "broker"]
    if not brokers and state.service_url:
        scheme, _, rest = state.service_url.partition("://")
        brokers = [PartDoor("broker", "broker", f"{scheme}://{place}") for place in rest.split(",")]
    # The gateway of a cluster in one process would start for this alone.
    gateway = [PartDoor("gateway", "gateway", state.gateway_url)] if state.gateway_url and not state.own_pid else []
    return [door for door in (*doors, *brokers, *gateway) if door.address]


def files_of(state: ClusterState, home: ClusterHome) -> list[Path]:
    """Return the files and directories of a running cluster that no other user may read."""
    folders = (state.ray_temporary_directory, state.data_root)
    return [home.directory, home.directory / FILE_NAME, *(Path(folder) for folder in folders if folder)]


def judge_attempts(uid: int, found: Sequence[Attempt], *, is_authenticated: bool | None) -> Iterator[CheckResult]:
    """Judge the answers that a stranger got. Pure.

    Args:
        uid: of the stranger.
        is_authenticated: whether the settings have callers authenticated; None: they are not on this machine.
    """
    who = f"uid {uid}, without credentials"
    inner = [each for each in found if each.kind not in ("broker", "gateway")]
    yield from _judge_inner(who, inner, is_authenticated=is_authenticated)
    outer = [each for each in found if each.kind in ("broker", "gateway") and "Unix" not in each.target]
    yield from _judge_outer(who, outer, is_authenticated=is_authenticated)


def _judge_inner(who: str, inner: Sequence[Attempt], *, is_authenticated: bool | None) -> Iterator[CheckResult]:
    """Judge the attempts at bookies, metadata and files, which are for the cluster's own parts."""
    if got := [each for each in inner if each.given]:
        told = "; ".join(f"{each.part or 'the file'} at {each.target}: {each.given}" for each in got[:SHOWN_MAX])
        if all(each.kind == "etcd" for each in got) and not is_authenticated:
            yield warning("doors", f"{who}, got {told}", "set auth.enabled, by which etcd members have certificates")
        else:
            yield problem("doors", f"{who}, got {told}", "`helio down`, then `helio up`: each start closes them")
    elif refused := [each for each in inner if each.refusal]:
        yield ok("doors", f"{len(refused)} attempts at bookies, metadata and files were refused ({who})")


def _judge_outer(who: str, outer: Sequence[Attempt], *, is_authenticated: bool | None) -> Iterator[CheckResult]:
    """Judge the attempts at brokers and gateways, which are for callers."""
    got = [each for each in outer if each.given]
    names = ", ".join(each.part for each in got[:SHOWN_MAX])
    if got and is_authenticated:
        yield problem("callers", f"{names} let in {who}", "restart them; auth.anonymous_role lets callers in, too")
    elif got and is_authenticated is None:
        yield warning("callers", f"{names} let in {who}", "set auth.enabled where `helio up` ran")
    elif is_authenticated is not False and (refused := [each for each in outer if each.refusal]):
        yield ok("callers", f"are authenticated: {', '.join(each.part for each in refused[:SHOWN_MAX])} refused {who}")
    elif is_authenticated:
        yield warning("callers", "are to be authenticated, but no broker or gateway was reached", "see `helio status`")


def callers_elsewhere(state: ClusterState) -> CheckResult:
    """Return the finding on a machine that joined the cluster: the settings that decide are not on it."""
    return warning(
        "callers",
        "decided by the settings of the machine that ran `helio up`, which this machine does not have",
        f"run `helio doctor` on that machine ({state.ray_address.rpartition(':')[0]})",
    )


def _closed_paths(config: ClusterConfig) -> list[Path]:
    home = config.home_directory
    found = [home, *(path for path in (config.data_root,) if path.exists())]
    for name in DIRECTORIES:
        folder = home / name
        if folder.is_dir():
            found += [folder, *islice((path for path in folder.iterdir() if path.is_file()), FILES_CHECKED_MAX)]
    return list(dict.fromkeys(found))


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _is_open(path: Path) -> bool:
    """Return whether others can read a path. In a directory that is closed to them, they cannot."""
    try:
        mode = path.stat().st_mode
        return bool(stat.S_IMODE(mode) & OTHERS) and (path.is_dir() or bool(path.parent.stat().st_mode & OTHERS))
    except OSError:
        return False


def _some(paths: list[Path]) -> str:
    shown = ", ".join(map(str, paths[:3]))
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"

"""The versions that parts run and that nodes have installed, and whether they may meet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heliograph.base.addressing.part_handle import answers_of
from heliograph.base.errors import BadRequestError, VersionMismatchError
from heliograph.base.version import MINORS_APART_MAX, heliograph_version, own_release, release_of
from heliograph.client import discovery
from heliograph.client.admin.part_access import PartAccess
from heliograph.cluster.doctor.finding import CheckResult, ok, problem, warning
from heliograph.cluster.versions.formats import spoken_formats
from heliograph.metadata.operator_records import PartReport

ANSWER_SECONDS = 10.0  # for all parts
INSTALLED_SECONDS = 60.0  # for all nodes to say what they have installed: each starts a process
Facts = Mapping[str, Any]  # what ``part_facts`` of a hosted actor returns


def check_versions(parts: Sequence[PartReport]) -> CheckResult:
    """Compare the versions and formats of the parts with this program's."""
    own = heliograph_version()
    others = {part.name: part.version for part in parts if part.version != own}
    other_formats = sorted(part.name for part in parts if part.formats and part.formats != spoken_formats())
    if not others and not other_formats:
        return ok("versions", f"all {len(parts)} parts have {own}")
    shown = ", ".join(f"{name} {version}" for name, version in sorted(others.items()))
    found = f"here {own}, but {shown}" if others else f"all parts have {own}"
    if other_formats:
        found += f"; other formats than here: {', '.join(other_formats)}"
    if not all(_may_meet(version) for version in others.values()):
        return problem("versions", found, "too far apart for one cluster: upgrade by one minor version at a time")
    return warning("versions", found, "install the same version on every node, then helio restart --rolling")


def check_installed(parts: Sequence[PartReport]) -> CheckResult:
    """Check that the nodes of the parts have this program's version installed."""
    own, installed = heliograph_version(), {part.home: part.installed for part in parts if part.home and part.installed}
    others = {address: version for address, version in installed.items() if version != own}
    if not others:
        return ok("installed", f"{len(installed)} nodes with parts have {own}")
    return warning("installed", f"here {own}, but {_listed(others)}", "install the same version on every node")


def ask_parts(namespace: str) -> dict[str, Facts]:
    """Return the facts of each part's process, from the joined Ray; parts that do not answer in time are left out.

    Raises:
        ClusterNotFoundError: there is no cluster.
    """
    parts = PartAccess(namespace, None, lambda: discovery.attach(namespace))
    return parts.ask("part_facts", dict.fromkeys(parts.names(), ()), ANSWER_SECONDS)[0]


def installed_versions(addresses: Iterable[str]) -> dict[str, str]:
    """Return the version that each Ray node has installed, by its address; empty: none, or it does not answer.

    A new process on each node reads the version, because running processes may have loaded an earlier one.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    program = "from heliograph.base.version import heliograph_version; print(heliograph_version())"

    def shown() -> str:  # defined here, so that Ray sends its code: the node's own may be older
        import os
        import subprocess
        import sys

        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    wanted = set(addresses)
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    ids = {node["NodeManagerAddress"]: node["NodeID"] for node in nodes if node["Alive"]}
    calls = {}
    for address in sorted(wanted & ids.keys()):
        there = NodeAffinitySchedulingStrategy(ids[address], soft=False)
        calls[address] = ray.remote(shown).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote()
    return dict.fromkeys(wanted, "") | answers_of(calls, INSTALLED_SECONDS)[0]


def require_upgradable(facts: Mapping[str, Facts], installed: Mapping[str, str]) -> None:
    """Check that a rolling restart gives every part this program's version, and that it works with running versions.

    Args:
        installed: version by the address of each node.

    Raises:
        VersionMismatchError: a node with parts has another version installed, or a part runs one that may not meet it.
    """
    own = heliograph_version()
    others = {address: version for address, version in installed.items() if version != own}
    if others:
        raise VersionMismatchError(
            f"here {own} is installed, but {_listed(others)}: install the same version on every node with parts first",
            field="version",
            limit=own,
        )
    far = {name: fact["version"] for name, fact in facts.items() if not _may_meet(fact["version"])}
    if far:
        raise VersionMismatchError(
            f"{own} is installed, but {_listed(far)}: parts of both would meet, and they are more than "
            f"{MINORS_APART_MAX} minor version apart: go by one at a time",
            field="version",
            limit=f"{MINORS_APART_MAX} minor version apart",
        )


def homes(facts: Mapping[str, Facts]) -> set[str]:
    return {fact["node_address"] for fact in facts.values() if fact["node_address"]}


def _may_meet(version: str) -> bool:
    try:
        return release_of(version).meets(own_release())
    except BadRequestError:
        return False


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} has {version or 'none that answers'}" for name, version in sorted(versions.items()))

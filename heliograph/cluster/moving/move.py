"""``helio bookies move``: stop a bookie, copy its directories, verify them, and start it where they are now.

What is not written again is copied before, so that the bookie is away for a short time and nobody copies for it.
The roster has the new place, so that every later start is there. The old directories keep their data under names that
no bookie is started on, until they are removed by hand. Whatever fails before the roster is changed, the bookie
is started where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from heliograph.actors.bookie.tools import copying
from heliograph.actors.bookie.tools.copying import CopyReport
from heliograph.base.errors import BadRequestError, ConflictError, NotFoundError, ResourceError
from heliograph.client import discovery
from heliograph.client.admin.admin import unwrapped
from heliograph.cluster import diagnosis, labels
from heliograph.cluster.moving import transfer
from heliograph.cluster.operator.calls import ask_auditor, ask_operator, has_operator
from heliograph.cluster.removal import existing, remove

CALL_SECONDS = 60.0
POLL_SECONDS = 0.5

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories of a bookie and the address of their node."""

    address: str
    journals: tuple[Path, ...]
    data: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        """All directories, each once."""
        return tuple(dict.fromkeys((*self.journals, *self.data)))


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """What was done. If the bookie is not ``serving``, it keeps trying to start at its new place."""

    bookie: str
    address: str
    journal_directories: tuple[str, ...]
    data_directories: tuple[str, ...]
    files: int
    bytes: int
    old_directories: tuple[str, ...]
    serving: bool


def move(
    bookie_id: str,
    namespace: str,
    *,
    to: Path,
    journal_to: Path | None = None,
    node: str | None = None,
    force: bool = False,
    wait_seconds: float,
    progress: Progress = lambda _: None,
) -> MoveOutcome:
    """Move the directories of a bookie below another directory of its node, or of another one.

    Args:
        to: where they go: ``to/BOOKIE/journal`` and ``to/BOOKIE/ledgers``, with numbers where there are several.
        journal_to: where the journals go; None: also to ``to``.
        node: address of the Ray node that has ``to``; None: the bookie's.
        force: also if too few bookies would be left for the widest ensemble while it is down.
        wait_seconds: for the bookie to serve again.

    Raises:
        NotFoundError: there is no such bookie, node or operator.
        ConflictError: too few bookies would be left; or a directory is there already.
        BadRequestError: a path is not absolute, or not apart from the present ones.
        ResourceError: a disk is too small, or failed; the bookie is started where it was.
        ClusterNotFoundError: there is no cluster.
    """
    _require_operator(namespace)
    _require_absolute(to, journal_to or to)
    old = _directories_of(bookie_id, namespace)
    place = _place_on(node) if node is not None and node != old.address else ()
    new = Directories(
        node or old.address,
        _below(journal_to or to, bookie_id, "journal", old.journals),
        _below(to, bookie_id, "ledgers", old.data),
    )
    if set(old.journals) & set(old.data):
        raise BadRequestError(
            f"{bookie_id} has one directory for journal and ledgers: copy it by hand, with --already-copied",
            field="bookie",
        )
    if new.address == old.address:
        copying.require_apart(old.all, new.all)
    if not force:
        ask_auditor(namespace, "may_stop_bookie", bookie_id)
    ahead = transfer.transfer_ahead(old.address, old.all, new.address, new.all)
    size = sum(file.size for _, file in ahead)
    progress(f"{len(ahead)} entry logs, {size} bytes are copied and verified while {bookie_id} serves")
    ask_operator(namespace, "hold", bookie_id)
    try:
        remove([bookie_id], namespace)
        progress(f"{bookie_id} is stopped")
        report = transfer.transfer(old.address, old.all, new.address, new.all, ahead)
        progress(f"{report.files} files, {report.bytes} bytes are copied and verified")
        _pin(bookie_id, namespace, new, *place)
        retired = _retire(old, progress)
    finally:
        ask_operator(namespace, "release", bookie_id)
    return _outcome(bookie_id, namespace, new, wait_seconds, report, retired)


def adopt(
    bookie_id: str,
    namespace: str,
    *,
    to: Path,
    journal_to: Path | None = None,
    node: str | None = None,
    wait_seconds: float,
) -> MoveOutcome:
    """Start a stopped bookie on directories that were copied by hand, then and later.

    Args:
        to, journal_to: the directories, or where ``to/BOOKIE`` has them.
        node: address of the Ray node that has them; None: the only one.
        wait_seconds: for the bookie to serve.

    Raises:
        NotFoundError: there is no such node or operator.
        ConflictError: the bookie runs; or the directories are not all of this bookie.
        BadRequestError: a path is not absolute, has no directory of a bookie, or several nodes could have it.
        ClusterNotFoundError: there is no cluster.
    """
    _require_operator(namespace)
    _require_absolute(to, journal_to or to)
    if existing(bookie_id, namespace) is not None:
        raise ConflictError(
            f"{bookie_id} runs, so a copy is incomplete: stop it with --already-copied alone, then copy",
            field="already_copied",
        )
    nodes = [found.address for found in diagnosis.living_nodes()]
    if node is None and len(nodes) > 1:
        raise BadRequestError("say which node has the copies: --node", field="node", limit=", ".join(sorted(nodes)))
    address = node or nodes[0]
    place = _place_on(address) if node is not None else ()
    roots = [root / bookie_id for root in dict.fromkeys((journal_to or to, to))]
    journals, data = transfer.find_copies(address, bookie_id, roots)
    new = Directories(address, tuple(journals), tuple(data))
    _pin(bookie_id, namespace, new, *place)
    ask_operator(namespace, "release", bookie_id)
    return _outcome(bookie_id, namespace, new, wait_seconds, CopyReport(0, 0), [])


def _require_operator(namespace: str) -> None:
    if not has_operator(namespace):
        raise NotFoundError(
            "this cluster has no operator, which keeps where its bookies are: stop the bookie with --already-copied "
            "alone, copy, change the settings, and run helio up",
            field="operator",
        )


def _require_absolute(*paths: Path) -> None:
    for path in paths:
        if not path.is_absolute():
            raise BadRequestError(f"{path} is not absolute", field="to", limit="a path from the root of the node")


def _pin(bookie_id: str, namespace: str, new: Directories, *place: Any) -> None:
    ask_operator(namespace, "place", bookie_id, list(map(str, new.journals)), list(map(str, new.data)), *place)


def _outcome(
    bookie_id: str,
    namespace: str,
    new: Directories,
    wait_seconds: float,
    report: CopyReport,
    retired: Sequence[Path],
) -> MoveOutcome:
    return MoveOutcome(
        bookie_id,
        new.address,
        tuple(map(str, new.journals)),
        tuple(map(str, new.data)),
        report.files,
        report.bytes,
        tuple(map(str, retired)),
        _serves(bookie_id, namespace, time.monotonic() + wait_seconds),
    )


def _directories_of(bookie_id: str, namespace: str) -> Directories:
    """Ask a bookie for its directories and its node."""
    handle = existing(bookie_id, namespace)
    if handle is None:
        known = [name for name in discovery.actor_names(namespace) if name.startswith(discovery.BOOKIE_PREFIX)]
        raise NotFoundError(
            f"{bookie_id} does not run, so nothing says where its directories are: helio up starts it where it was",
            field="bookie",
            limit=", ".join(sorted(known)),
        )
    try:
        found, facts = ray.get([handle.directories.remote(), handle.part_facts.remote()], timeout=CALL_SECONDS)
    except ray.exceptions.RayError as error:
        raise unwrapped(error, bookie_id) from error
    return Directories(facts["node_address"], _paths(found["journal"]), _paths(found["data"]))


def _retire(old: Directories, progress: Progress) -> list[Path]:
    """Rename the old directories. No bookie would start on them anyway, since their cookies are old."""
    try:
        retired = transfer.retire(old.address, old.all)
    except ResourceError as error:
        progress(f"the old directories keep their names: {error}. Remove {', '.join(map(str, old.all))}")
        return []
    for path in retired:
        progress(f"the old data is {path} on {old.address}: remove it when you do not want it any more")
    return retired


def _place_on(address: str) -> tuple[labels.Place, str]:
    """Return the place that is a node, and its rack.

    Raises:
        NotFoundError: there is no such node.
        ConflictError: it is not labelled for bookies.
    """
    nodes = {node.address: node for node in diagnosis.living_nodes()}
    if address not in nodes:
        raise NotFoundError(f"Ray has no node at {address}", field="node", limit=", ".join(sorted(nodes)))
    found = nodes[address].labels
    if len(nodes) > 1 and labels.BOOKIE not in found:
        raise ConflictError(
            f"the node at {address} has no label {labels.BOOKIE}, so no bookie is to run there: start it with "
            f"{labels.BOOKIE}={labels.ANY}",
            field="node",
        )
    selector = {labels.BOOKIE: found[labels.BOOKIE]} if labels.BOOKIE in found else {}
    return labels.Place(selector, address), found.get(labels.RACK, "default")


def _below(root: Path, bookie_id: str, leaf: str, old: Sequence[Path]) -> tuple[Path, ...]:
    names = [leaf] if len(old) == 1 else [f"{leaf}-{number}" for number in range(1, len(old) + 1)]
    return tuple(root / bookie_id / name for name in names)


def _serves(bookie_id: str, namespace: str, deadline: float) -> bool:
    while not ask_auditor(namespace, "recovery_progress", bookie_id)["is_alive"]:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _paths(texts: Any) -> tuple[Path, ...]:
    return tuple(map(Path, texts))

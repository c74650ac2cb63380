"""``helio leave``: a machine goes out of a cluster, or away for some time, without a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from heliograph.base.errors import ClusterNotFoundError, ConflictError, HeliographError
from heliograph.base.home import ClusterHome
from heliograph.client import discovery
from heliograph.cluster.joining import node, record
from heliograph.cluster.joining.record import NodeRecord
from heliograph.cluster.operator import wishes
from heliograph.cluster.wishing import wished
from heliograph.metadata.operator_records import WishKind, WishState

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LeaveOutcome:
    """The outcome. If it is not ``done``, the node runs on and is being emptied; another call waits again.

    Attributes:
        left: parts that are still on the node, each with a note.
        is_remembered: whether ``helio join`` brings the same node back.
    """

    address: str
    done: bool
    is_remembered: bool
    left: Mapping[str, str] = field(default_factory=dict)


def leave(
    namespace: str,
    home: ClusterHome,
    *,
    keep_data: bool = False,
    force: bool = False,
    timeout_seconds: float = 3_600.0,
    progress: Progress = lambda _: None,
) -> LeaveOutcome:
    """Take this machine out of its cluster: drain its brokers, empty its bookies, and end its Ray node.

    Args:
        keep_data: the bookies keep their data and return with ``helio join``.
        force: end the node also where that was refused or took too long. Its bookies stay in the cluster, away; with
            ``keep_data``, its parts stop in good order before.
        timeout_seconds: longest wait for the bookies to be empty.

    Raises:
        ClusterNotFoundError: this machine joined no cluster, its node does not run, or the cluster does not answer.
        ConflictError: the cluster cannot do without the node; nothing was done.
    """
    known = _known(home)
    left: dict[str, str] = {}
    if known.is_running:
        try:
            left = _give_up(known, home, timeout_seconds, progress, keep_data=keep_data, force=force)
        except HeliographError as error:
            if not force:
                raise
            progress(f"{error}; the node ends all the same")
            keep_data = True
    elif not force:
        raise ClusterNotFoundError(
            "the node of this machine does not run, so its parts cannot be taken out: run helio join first, or empty "
            "its bookies with helio bookies decommission; --force only forgets the node",
            field="node",
        )
    if left and not force:
        return LeaveOutcome(known.address, done=False, is_remembered=True, left=left)
    discovery.detach()
    is_remembered = known.is_running and (keep_data or bool(left))
    with home.locked():
        stop(home, progress, is_remembered=is_remembered)
    return LeaveOutcome(known.address, done=True, is_remembered=is_remembered, left=left)


def stop(home: ClusterHome, progress: Progress, *, is_remembered: bool = True) -> None:
    """End the Ray node of this machine, with what runs on it. The caller holds the lock of the home.

    Args:
        is_remembered: keep what ``helio join`` needs to bring the same node back.

    Raises:
        ClusterNotFoundError: this machine joined no cluster.
    """
    known = _known(home)
    stopped = node.stop_node(known)
    if is_remembered:
        record.save_record(home, stopped)
    else:
        record.forget_record(home)
    home.forget()
    progress(f"the Ray node at {known.address} has ended")


def _known(home: ClusterHome) -> NodeRecord:
    if (known := record.load_record(home)) is not None:
        return known
    if (state := home.load()) is not None and not state.node_address:
        raise ConflictError("this machine started the cluster, with helio up: helio down ends it", field="node")
    raise ClusterNotFoundError(f"this machine joined no cluster from {home.directory}", field="node")


def _give_up(
    known: NodeRecord, home: ClusterHome, wait_seconds: float, progress: Progress, *, keep_data: bool, force: bool
) -> dict[str, str]:
    """Take the parts off the node; return the parts that are left when the time is over, each with a note."""
    options = {"data": wishes.KEEPS_DATA} if keep_data else {}
    if keep_data and force:
        options["force"] = wishes.FORCED
    try:
        found = wished(
            WishKind.LEAVE,
            known.address,
            options,
            home,
            known.namespace,
            wait_seconds=wait_seconds,
            progress=progress,
        )
    except ConflictError as error:
        raise ConflictError(
            f"{error}. To reboot this machine all the same: helio leave --keep-data --force, then helio join; "
            "meanwhile entries have a copy less, and topics go on while an ack quorum of bookies is there",
            field=error.field,
            limit=error.limit,
        ) from error
    if found.state is WishState.DONE:
        return {}
    return dict(found.outcome.get("left") or {known.address: found.note or "no operator has begun to empty it"})

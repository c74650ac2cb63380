"""``helio join``: this machine becomes a node of a cluster, and waits for the parts that the operator gives it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from heliograph.base.errors import (
    ClusterNotFoundError,
    ConflictError,
    InvalidConfigError,
    NotPermittedError,
    ResourceError,
)
from heliograph.base.home import ClusterHome, ClusterState, private_files
from heliograph.base.system.processes import boot_id
from heliograph.client import discovery, ray_release
from heliograph.cluster import labels, ports
from heliograph.cluster.head.starting import is_last_start
from heliograph.cluster.joining import node, record, view
from heliograph.cluster.joining.record import NodeRecord
from heliograph.cluster.joining.view import ClusterCard, OutsideView
from heliograph.cluster.wishing import wished
from heliograph.metadata.operator_records import WishKind

USUAL_PORT = 6379  # of Ray, where nodes join
DEFAULT_LABELS = {labels.BOOKIE: labels.ANY, labels.BROKER: labels.ANY}
NOTICED_SECONDS = 120.0  # for the cluster to notice that this node ended before; Ray asks nodes for half a minute
POLL_SECONDS = 1.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JoinWishes:
    """Arguments of the caller; None or empty takes the value that this machine remembers, and then the default.

    Attributes:
        head: ``host:port`` where nodes join the cluster; port 6379 without one.
        labels: of this node; by default, it may carry bookies and brokers.
        host: address of this node; by default, the source address of this machine's route to the head.
        ray_port: first of the ports of Ray on this machine; 0: free ones.
    """

    head: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    host: str | None = None
    ray_port: int | None = None


@dataclass(frozen=True, slots=True)
class JoinOutcome:
    """The outcome. ``missing`` has the parts of this node that do not serve yet, with reasons; they keep trying."""

    address: str
    labels: Mapping[str, str]
    head: str
    parts: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


def join(
    wishes: JoinWishes, namespace: str, home: ClusterHome, wait_seconds: float, progress: Progress = lambda _: None
) -> JoinOutcome:
    """Bring this machine into a cluster, unless it is in it, and wait until its parts serve.

    This process has joined the cluster's Ray afterwards.

    Args:
        wait_seconds: longest wait for the cluster's card, for its operator, and for the parts, each.

    Raises:
        ClusterNotFoundError: no cluster is named, or the named one cannot be reached or has no Heliograph.
        NotPermittedError: the token of Ray is missing or wrong.
        ConflictError: the machine is in another cluster, or its address is another node's; programs differ; or the
            cluster listens on loopback.
        InvalidConfigError: the address is none of this machine.
        ResourceError: a port is taken, or the node does not start. Nothing of it runs.
    """
    with private_files(), home.locked():
        wanted = _wanted(wishes, namespace, home)
        head = view.resolved(wanted.head, USUAL_PORT)
        wanted = replace(wanted, address=wanted.address or view.own_address_towards(head))
        if not ports.is_free(0, wanted.address):
            raise InvalidConfigError(
                f"{wanted.address} is no address of this machine: give it that one back, or name its new one with "
                "--host; then helio bookies place starts each bookie that it has data of",
                field="host",
            )
        _use_token(wanted)
        seen = OutsideView(head)
        card = _card(seen, namespace, wait_seconds, progress)
        known = record.load_record(home)
        if known is not None and known.is_running:
            _require_same(known, wanted)
            progress(f"this machine has joined {wanted.head} already, as {known}")
        else:
            seen.require_same_programs(card)
            view.require_reach(card)
            _start(wanted, known, head, seen, home, progress)
        home.save(_state(wanted, head, card))
    discovery.attach(namespace, home=home.directory, address=head)
    if not card.has_operator:
        return JoinOutcome(wanted.address, wanted.labels, wanted.head)
    if not card.metadata_url:
        _wait_for_operator(wanted, home, wait_seconds, progress)
    return _wait_for_parts(wanted, home, wait_seconds, progress)


def _wanted(wishes: JoinWishes, namespace: str, home: ClusterHome) -> NodeRecord:
    known = record.load_record(home)
    state = home.load()
    if known is None and state is not None:
        raise ConflictError(
            f"{home.directory} is the home of a cluster that this machine started: give another --home, or stop it "
            "with helio down",
            field="home",
        )
    if known is not None and known.namespace != namespace:
        raise ConflictError(
            f"{home.directory} is the home of a node of the cluster {known.namespace!r}: give another --home",
            field="home",
        )
    head = wishes.head or (known.head if known else None)
    if head is None:
        raise ClusterNotFoundError(
            "this machine remembers no cluster: name it, helio join HOST:PORT (the ray_port of the machine that ran "
            "helio up)",
            field="address",
        )
    remembered = known if known is not None and known.head == head else None
    return NodeRecord(
        namespace,
        head,
        wishes.host or (remembered.address if remembered else ""),
        dict(wishes.labels or (remembered.labels if remembered else DEFAULT_LABELS)),
        wishes.ray_port if wishes.ray_port is not None else (remembered.ray_port if remembered else 0),
        os.environ.get("RAY_AUTH_MODE") or (remembered.auth_mode if remembered else "token"),
    )


def _use_token(wanted: NodeRecord) -> None:
    if wanted.auth_mode != "token":
        os.environ["RAY_AUTH_MODE"] = wanted.auth_mode
        return
    if not discovery.has_token():
        raise NotPermittedError(
            "this machine has no token of Ray: copy ~/.ray/auth_token of the user who ran `helio up` to the same place "
            "here (or set RAY_AUTH_MODE=disabled, if the cluster has none)",
            field="token",
        )
    ray_release.present_token()


def _card(seen: OutsideView, namespace: str, wait_seconds: float, say: Progress) -> ClusterCard:
    """Return the cluster's card; a cluster whose first machine is starting has none yet."""
    deadline = time.monotonic() + wait_seconds
    is_told = False
    while (card := seen.card(namespace)) is None:
        if time.monotonic() > deadline:
            raise ClusterNotFoundError(
                f"no Heliograph in Ray namespace {namespace!r} runs in the Ray at {seen.address}: run helio up there",
                field="address",
            )
        if not is_told:
            say(f"waiting for helio up at {seen.address}")
        is_told = True
        time.sleep(POLL_SECONDS)
    return card


def _require_same(known: NodeRecord, wanted: NodeRecord) -> None:
    if known.identity != wanted.identity:
        raise ConflictError(
            f"this machine has joined {known.head} already, as {known}: to join {wanted.head} as {wanted}, run "
            "helio leave first",
            field="node",
        )


def _start(
    wanted: NodeRecord, known: NodeRecord | None, head: str, seen: OutsideView, home: ClusterHome, say: Progress
) -> None:
    if known is not None:
        node.stop_node(known)  # what is left of a node that ended
    before = seen.nodes_at(wanted.address)
    if before and known is not None and known.address == wanted.address:
        say(f"waiting until the cluster has noticed that {wanted.address} ended before")
        deadline = time.monotonic() + NOTICED_SECONDS
        while before and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            before = seen.nodes_at(wanted.address)
    if before:
        raise ConflictError(
            f"the cluster at {wanted.head} has a node at {wanted.address} already, which this home did not start: "
            "choose another address of this machine with --host, or stop that node",
            field="host",
        )
    say(f"starting a Ray node at {wanted}")
    for attempt in count(1):
        started = node.start_node(wanted, head, home)
        record.save_record(home, started)  # from here on `down` can stop it, even if this process ends
        try:
            node.wait_for_node(started, seen, before, home)
            break
        except BaseException as error:
            node.stop_node(started)  # the record stays as it is: it was not stopped on request
            if not isinstance(error, ResourceError) or is_last_start(attempt, error):
                raise
            say(f"{error}; starting it again")  # Ray gives up its own start after 30 s, also on a busy machine
            before = seen.nodes_at(wanted.address)
    say(f"{wanted.address} is a node of the cluster at {wanted.head}")


def _state(wanted: NodeRecord, head: str, card: ClusterCard) -> ClusterState:
    return ClusterState(
        namespace=wanted.namespace,
        ray_address=head,
        ray_auth_mode=wanted.auth_mode,
        metadata_url=card.metadata_url,
        service_url=card.service_url,
        gateway_url=card.gateway_url,
        tls_ca_file=card.tls_ca_file,
        node_address=wanted.address,
        boot_id=boot_id(),
    )


def _wait_for_operator(wanted: NodeRecord, home: ClusterHome, wait_seconds: float, say: Progress) -> None:
    """Wait until ``helio up``, which leaves the card before it starts any part, has started the operator.

    Raises:
        ClusterNotFoundError: it has not in time; the node runs on.
        ResourceError: the Ray node has ended; quotes the last lines of its log.
    """
    deadline = time.monotonic() + wait_seconds
    is_told = False
    while not _has_operator(wanted.namespace):
        node.require_running(home)
        if time.monotonic() > deadline:
            raise ClusterNotFoundError(
                f"helio up at {wanted.head} has not started the operator in {wait_seconds:.0f} s: run helio join again "
                "when it has",
                field="address",
            )
        if not is_told:
            say(f"waiting until helio up at {wanted.head} starts the operator")
        is_told = True
        time.sleep(POLL_SECONDS)


def _has_operator(namespace: str) -> bool:
    with contextlib.suppress(ClusterNotFoundError):  # there is no part yet, or Ray does not answer now
        return discovery.OPERATOR in discovery.actor_names(namespace)
    return False


def _wait_for_parts(wanted: NodeRecord, home: ClusterHome, wait_seconds: float, say: Progress) -> JoinOutcome:
    """Wait until the parts of the node serve.

    Raises:
        ResourceError: the Ray node has ended; quotes the last lines of its log.
    """
    named = wanted.labels.get(labels.BOOKIE, "")
    found = wished(
        WishKind.JOIN,
        wanted.address,
        {"bookie": named} if "-" in named else {},
        home,
        wanted.namespace,
        wait_seconds=wait_seconds,
        progress=say,
        check=lambda: node.require_running(home),
    )
    missing = found.outcome.get("missing", {"operator": found.note or "it has not answered yet"})
    return JoinOutcome(wanted.address, wanted.labels, wanted.head, tuple(found.outcome.get("parts", ())), dict(missing))

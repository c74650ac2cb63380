"""The creation of actors: metadata, then bookies, brokers, auditor and gateway, until each serves.

No other file creates actors. All are named, detached and restarted by Ray without limit. Each keeps the process of its
part (``keeping``), which starts by itself (``hosting.py``). Ray retries no call, because the first attempt may have
happened. No actor has concurrency groups: each would have a thread of its own, against the rule of one thread of
control. A high ``max_concurrency`` lets administrative calls pass those that wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.cloudpickle
import ray.exceptions

from heliograph.actors.auditor.actor import AuditorActor
from heliograph.actors.bookie.actor import BookieActor
from heliograph.actors.broker.actor import BrokerActor
from heliograph.actors.broker.namespaces.bundles import bundles_for
from heliograph.base.addressing import part_handle
from heliograph.base.addressing.part_handle import SHARED_PROCESS, SharedPart, describe, part_names
from heliograph.base.errors import ConflictError, NotFoundError, ResourceError
from heliograph.base.home import ClusterHome
from heliograph.base.peer import ListenAddress, is_loopback
from heliograph.base.settings import portable, restored
from heliograph.base.tls.authority import DIRECTORY as CERTIFICATES
from heliograph.client import discovery
from heliograph.client.discovery import METADATA, OPERATOR
from heliograph.cluster import diagnosis
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.etcd_members import record
from heliograph.cluster.head import launch
from heliograph.cluster.head.worker_environment import worker_environment
from heliograph.cluster.hosting import hosted
from heliograph.cluster.keeping.keeper import kept, made_of
from heliograph.cluster.labels import ADDRESS_RESOURCE, Node, Place
from heliograph.cluster.naming import START_GROUPS, stranger_note
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator.actor import OperatorActor, OperatorArguments, PackedCall  # noqa: F401 - by pickles
from heliograph.cluster.operator.changes.members import rules_of
from heliograph.cluster.operator.operator import OperatorSettings
from heliograph.cluster.operator.planning import OperatorRules, Sight, plan, shared_machines
from heliograph.cluster.operator.storage import load_roster, moving, save_roster
from heliograph.cluster.parts import Part, check_reach, is_shared, part_named, parts_of, require_machines
from heliograph.cluster.removal import existing, remove
from heliograph.cluster.settings.nodes import disks_in, without_directories
from heliograph.cluster.settings.placed import on_this_node
from heliograph.cluster.shared_process import SharedProcess
from heliograph.gateway.actor import GatewayActor
from heliograph.metadata.backends.embedded.actor import MetadataActor, StoreAccess
from heliograph.metadata.connect import connect_store, embedded_url
from heliograph.metadata.credentials import with_password, with_secrets
from heliograph.metadata.etcd_member.actor import EtcdMemberActor
from heliograph.metadata.operator_records import Roster
from heliograph.metadata.recipes.cluster_init import initialise, set_default_copies
from heliograph.metadata.recipes.occupancy import require_vacant

SESSION_TIMEOUTS_WAITED = 2  # time for the registrations of a dead cluster to expire
NEEDED = ("metadata", "bookie", "broker")  # kinds of which at least one part has to serve
NODE_POLL_SECONDS = 0.5
MACHINES_SECONDS = 60.0  # for as many machines with bookies as copies, where the first start waits for machines anyway
ADDRESS_SHARE = 0.001  # of a node's resource for its address; each of up to 1,000 actors holds as much
CALLS_AT_ONCE_MAX = 10_000  # per actor; with Ray's default of 1,000, waiting calls block administrative ones
# Of Ray's resource "memory", for each actor: an autoscaler removes nodes whose resources are all free.
HELD_MEMORY_BYTES = 1 << 20

Progress = Callable[[str], None]


@dataclass(slots=True)
class Deployed:
    """The addresses of a deployed cluster."""

    metadata_url: str
    addresses: dict[str, str] = field(default_factory=dict)  # by actor name
    created: list[str] = field(default_factory=list)  # actors that did not exist before
    not_serving: dict[str, str] = field(default_factory=dict)  # reasons, by actor name; each keeps trying


def deploy(
    config: ClusterConfig,
    home: ClusterHome,
    progress: Progress,
    *,
    dashboard_url: str = "",
    metadata_only: bool = False,
) -> Deployed:
    """Create the missing parts of the cluster in the Ray that this process has joined, and wait until they serve.

    A part that does not serve within ``start_timeout_ms``, or whose node is away, keeps trying and does not keep the
    others from serving.

    Args:
        home: where the places of parts with data are recorded.
        metadata_only: start the cluster's own metadata store and nothing else, and write nothing into it.

    Raises:
        ResourceError: the metadata store, every bookie or every broker does not serve; names one and the reason. The
            actors that this call created are removed again; their data stays.
        ConflictError: the metadata is in the cluster's other store.
    """
    if not metadata_only:
        record.check_moved(config, home)
    parts, nodes = _placed_parts(config, home, progress)
    check_reach(config, parts, nodes)
    home.keep_places({part.name: part.place.fields() for part in parts if part.directory is not None})
    deployed = Deployed(metadata_url=config.metadata_url or "")
    if existing(OPERATOR, config.namespace) is not None:
        remove([OPERATOR], config.namespace)  # it keeps nothing; its successor has the settings of this start
    try:
        for kinds in START_GROUPS:
            group = [part for part in parts if part.kind in kinds]
            others = [part for part in parts if part.kind not in (*rosters.KINDS, "operator")]
            _start_group(group, nodes, config, deployed, dashboard_url, others, home)
            for part in group:
                progress(_outcome(part.name, deployed))
            _require_service(group, deployed)
            if "metadata" in kinds:
                deployed.metadata_url = _store_url(config, group, deployed)
                url = _with_credentials(config, deployed.metadata_url)
                record.note_formed(group, home)
                if metadata_only:
                    return deployed
                asyncio.run(launch.while_ray_runs(_initialise(config, url, part_names(config.namespace)), home))
                if config.operator:
                    roster = asyncio.run(launch.while_ray_runs(_call_roll(config, url, parts, nodes), home))
                    few = rosters.fewer_than(roster, bookies=config.bookies, brokers=config.brokers)
                    few += record.members_note(config, parts)
                    for line in (*few, *shared_machines(roster, nodes, config.write_quorum)):
                        progress(line)
                    parts = _on_roster(parts, roster, config)
                    home.keep_places({part.name: part.place.fields() for part in parts if part.directory is not None})
    except BaseException:
        if not launch.end_of_ray(home):  # else the GCS, which is asked for a minute, may be gone, too
            remove(deployed.created, config.namespace)
        raise
    return deployed


def _placed_parts(config: ClusterConfig, home: ClusterHome, progress: Progress) -> tuple[list[Part], list[Node]]:
    """Return all parts with their places, and the nodes; other nodes may join a head that ``helio up`` started.

    Raises:
        ResourceError: no node carries the label of a part.
    """
    deadline = time.monotonic() + config.start_timeout_ms / 1000
    known = {name: Place.parse(place) for name, place in home.places().items()}
    said, until = "", 0.0
    while True:
        nodes = diagnosis.living_nodes()
        try:
            parts = parts_of(config, nodes, known)
            until = until or min(deadline, time.monotonic() + MACHINES_SECONDS)
            if said and time.monotonic() < until:
                require_machines(parts, config.write_quorum)
            return record.with_membership(parts, nodes, config, home), nodes
        except ResourceError as error:
            if error.field != "labels" or "ray_labels" not in config.model_fields_set or time.monotonic() > deadline:
                raise
            if str(error) != said:
                progress(f"waiting for other nodes to join {ray.get_runtime_context().gcs_address}: {error}")
            said = str(error)
            time.sleep(NODE_POLL_SECONDS)


def _outcome(name: str, deployed: Deployed) -> str:
    address = deployed.addresses.get(name)
    if address is None:
        return f"{name} does not serve yet: {deployed.not_serving[name]}; it keeps trying"
    return f"{name} serves" + (f" at {address}" if address != name else "")


def _store_url(config: ClusterConfig, group: Sequence[Part], deployed: Deployed) -> str:
    """Return the URL of the metadata store, without the cluster's secret."""
    if not group:
        return deployed.metadata_url
    if group[0].membership is not None:
        return group[0].membership.store_url(config.peer_tls)
    return embedded_url(deployed.addresses[METADATA], config.peer_tls)


def _require_service(group: Sequence[Part], deployed: Deployed) -> None:
    """Check that the parts that started can serve clients at all.

    Raises:
        ResourceError: they cannot.
    """
    for kind in NEEDED:
        names = [part.name for part in group if part.kind == kind]
        if names and deployed.addresses.keys().isdisjoint(names):  # one etcd member serves if most of them do
            reasons = "; ".join(f"{name} did not start: {deployed.not_serving[name]}" for name in names)
            raise ResourceError(f"nothing can be served: {reasons}")


def _start_group(
    group: Sequence[Part],
    nodes: Sequence[Node],
    config: ClusterConfig,
    deployed: Deployed,
    dashboard_url: str,
    others: Sequence[Part],
    home: ClusterHome,
) -> None:
    calls: dict[Any, Part] = {}
    for part in group:
        if existing(part.name, config.namespace) is None:
            deployed.created.append(part.name)
        url = _with_credentials(config, deployed.metadata_url)
        try:
            handle = _create(part, config, url, dashboard_url, others, discovery.own_address())
        except ConflictError as error:
            deployed.not_serving[part.name] = str(error)
            continue
        if part.membership is not None and not part.membership.is_formed:
            handle.permit.remote(is_joining=False)
        if any(part.place.admits(node) for node in nodes):
            calls[handle.start.remote()] = part
        else:
            deployed.not_serving[part.name] = f"it is waiting for {part.place}"
    deadline, waiting = time.monotonic() + config.start_timeout_ms / 1000, list(calls)
    while waiting:
        left = max(0.0, deadline - time.monotonic())
        done, waiting = ray.wait(waiting, num_returns=1, timeout=min(left, launch.POLL_SECONDS))
        if not done:
            launch.require_ray(home)
            if left:
                continue
            for part in (calls[call] for call in waiting):
                known = deployed.not_serving.get(part.name)
                why = known or diagnosis.why_not_running(part.name, part.place, config.namespace)
                deployed.not_serving[part.name] = f"not ready after {config.start_timeout_ms / 1000:.0f} s: {why}"
            return
        part = calls[done[0]]
        try:
            deployed.addresses[part.name] = str(ray.get(done[0]))
            deployed.not_serving.pop(part.name, None)
        except ray.exceptions.RayError as error:
            deployed.not_serving[part.name] = diagnosis.reason(error)
            if left and diagnosis.is_passing(error):  # Ray has it start again, or elsewhere if its node ended
                time.sleep(NODE_POLL_SECONDS)
                handle = existing(part.name, config.namespace)
                assert handle is not None, "Ray starts a part again without limit"
                waiting.append(again := handle.start.remote())
                calls[again] = part


def create_named(
    config: ClusterConfig,
    others: Any,
    metadata_url: str,
    dashboard_url: str,
    name: str,
    roster: Roster,
    *,
    signed_at: str = "",
    is_begun: bool = True,
) -> None:
    """Create a part by its name, as the operator does.

    Args:
        others: the parts that are not in the roster, as ``portable`` returned them.
        metadata_url: with its password.
        signed_at: address of the node where the certificates of ``tls="auto"`` are signed.
        is_begun: False leaves a part of the shared process as it is until that starts again.

    Raises:
        NotFoundError: the part was taken out meanwhile.
    """
    kept = record.parts_of_roster(restored(others), roster.members, config)
    membership = next((part.membership for part in kept if part.membership is not None), None)
    if membership is not None:
        metadata_url = membership.store_url(config.peer_tls)
    parts = [*kept, *_rostered(roster, config), *rosters.replicator_parts(roster)]
    part = next((part for part in parts if part.name == name), None)
    if part is None:  # no StopIteration, which would never reach the caller of a thread
        raise NotFoundError(f"the cluster has no part {name!r} any more", field="part")
    _create(part, config, metadata_url, dashboard_url, kept, signed_at, is_begun=is_begun)


def _rostered(roster: Roster, config: ClusterConfig) -> list[Part]:
    return [
        replace(
            part_named(part.name, config, rosters.place_of(part), part.rack),
            journal_directories=tuple(map(Path, part.journal_directories)),
            data_directories=tuple(map(Path, part.data_directories)),
        )
        for part in roster.parts
        if not part.is_leaving and not part.is_held
    ]


def _on_roster(parts: Sequence[Part], roster: Roster, config: ClusterConfig) -> list[Part]:
    """Return the parts, with the bookies and brokers of the roster instead of those of the configuration."""
    others = [part for part in parts if part.kind not in (*rosters.KINDS, "replicator")]
    replicators = rosters.replicator_parts(roster) if _has_replicators(parts) else []
    return [*others, *_rostered(roster, config), *replicators]


def _has_replicators(parts: Sequence[Part]) -> bool:
    return any(part.kind == "replicator" for part in parts)


async def _call_roll(config: ClusterConfig, url: str, parts: Sequence[Part], nodes: Sequence[Node]) -> Roster:
    """Return the roster, with the parts that the configuration newly asks for; parts are never taken out here."""
    store = await connect_store(url, session_timeout_ms=config.session_timeout_ms)
    try:
        found = await load_roster(store)
        copied = await moving(store)
        roster = rosters.first_roster(parts, nodes) if found is None else rosters.without_holds(found, copied)
        is_chosen = "brokers" in config.model_fields_set or not (found is None or found.joining_bring_brokers)
        roster = replace(roster, joining_bring_brokers=not is_chosen)
        for kind, count in (("bookie", config.bookies), ("broker", config.brokers)):
            roster = rosters.with_configured(roster, kind, count)
        roster = replace(roster, members=record.roster_members(parts))
        roster = plan(roster, Sight(nodes), _rules(config)).roster
        if roster != found:
            await save_roster(store, roster)
        return roster
    finally:
        await store.close()


def _rules(config: ClusterConfig) -> OperatorRules:
    return OperatorRules(
        config.require_labels, is_loopback(config.host), copies=config.write_quorum, disks=disks_in(config.nodes)
    )


def _operator_arguments(
    config: ClusterConfig, metadata_url: str, dashboard_url: str, others: Sequence[Part], signed_at: str
) -> OperatorArguments:
    fixed = tuple(part for part in others if part.kind != "replicator")  # the operator keeps a worker at each place
    settings = OperatorSettings(
        identity=f"{OPERATOR} of {config.namespace}",
        rules=replace(_rules(config), has_replicators=_has_replicators(others)),
        others=tuple(part.name for part in fixed),
        ensemble_size=config.ensemble_size,
        start_seconds=config.start_timeout_ms / 1000,
        copies=config.persistence,
        members=rules_of(fixed, config, signed_at),
        watch_files=config.watch_files(discovery.own_address()),
    )
    create = partial(create_named, config, portable(fixed), metadata_url, dashboard_url, signed_at=signed_at)
    return OperatorArguments(config.namespace, metadata_url, config.session_timeout_ms, settings, create)


def _create(
    part: Part,
    config: ClusterConfig,
    metadata_url: str,
    dashboard_url: str,
    others: Sequence[Part],
    signed_at: str,
    *,
    is_begun: bool = True,
) -> Any:
    if part.kind == "operator":
        actor_class: type[Any] = OperatorActor
        arguments: tuple[Any, ...] = (_operator_arguments(config, metadata_url, dashboard_url, others, signed_at),)
    else:
        actor_class, arguments = _class_and_arguments(part, config, metadata_url, dashboard_url)
    made = _hosted(actor_class, part, config, metadata_url, signed_at)
    if is_shared(part, config, diagnosis.living_nodes(), signed_at):
        if is_begun and (handle := existing(part.name, config.namespace)) is not None:
            return handle
        process = _shared_process(config, signed_at)
        describe(part.name, config.namespace, made_of(made, arguments))
        if is_begun:
            process.begin.remote(part.name)
        return SharedPart(process, part.name, config.namespace)
    if not is_begun:
        return None
    options = {
        # Else all brokers are on one node, which may be lost.
        "scheduling_strategy": "SPREAD" if part.kind == "broker" else None,
        "label_selector": dict(part.place.selector) or None,
        "resources": _at(part.place.address) if part.place.address else None,
    }
    return _actor(made, part.name, part.kind, config, options, arguments, part.shown)


def _shared_process(config: ClusterConfig, address: str) -> Any:
    """Return the actor of the process that the parts at an address share; create it if it is missing."""
    options = {"resources": _at(address)}
    return _actor(SharedProcess, SHARED_PROCESS, "", config, options, (config.namespace, config.logs_config()))


def _actor(
    actor_class: type[Any],
    name: str,
    kind: str,
    config: ClusterConfig,
    options: Mapping[str, Any],
    arguments: Sequence[Any],
    shown: str = "",
) -> Any:
    """Return the actor of this name; create it if it is missing. ``shown`` is as ``kept`` has it.

    Raises:
        ConflictError: an actor of another program has the name.
    """
    if part_handle.is_stranger(name, config.namespace):
        raise ConflictError(stranger_note(name, config.namespace), field="name")
    modules = [on_this_node.__module__, *([__name__] if kind in ("operator", "") else [])]  # both make any part
    made = ray.remote(kept(actor_class, name, config.namespace, modules, shown)).options(
        name=name,
        namespace=config.namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=CALLS_AT_ONCE_MAX,
        enable_task_events=False,  # else Ray's GCS keeps 3 kB of each call, up to 100,000 calls
        num_cpus=config.actor_cpus,
        memory=HELD_MEMORY_BYTES,
        runtime_env={"env_vars": found} if (found := worker_environment(kind, config)) else None,
        **options,
    )
    handle = made.remote(made_of(actor_class, arguments))
    if not part_handle.is_part(handle, name):  # it took the name since it was looked up
        raise ConflictError(stranger_note(name, config.namespace), field="name")
    return handle


def _at(address: str) -> dict[str, float]:
    return {f"{ADDRESS_RESOURCE}{address}": ADDRESS_SHARE}


def _hosted(actor_class: type[Any], part: Part, config: ClusterConfig, url: str = "", signed_at: str = "") -> type[Any]:
    nodes = without_directories(config.nodes) if part.data_directories else config.nodes
    prepare = partial(on_this_node, part.name, config.namespace, nodes)
    if config.has_own_authority:
        prepare = partial(prepare, certificates=str(config.home_directory / CERTIFICATES), signed_at=signed_at)
    return hosted(actor_class, prepare, part=part.name, logs=config.logs_config(), watch=config.watch_config(url))


def _class_and_arguments(
    part: Part, config: ClusterConfig, metadata_url: str, dashboard_url: str
) -> tuple[type[Any], tuple[Any, ...]]:
    listen = ListenAddress(config.host, part.port)
    if part.membership is not None:
        return EtcdMemberActor, (str(part.directory), listen, record.plan_of(part, config))
    if part.kind == "metadata":
        access = StoreAccess(config.secrets, config.peer_tls)
        return MetadataActor, (str(part.directory), listen, config.metadata_limits(), access)
    if part.kind == "bookie":
        assert part.directory is not None, "a bookie has a directory"
        made = config.bookie_config(
            part.name,
            part.directory,
            port=part.port,
            rack=part.rack,
            disk="" if part.data_directories else part.place.disk,
        )
        if part.data_directories:
            made = replace(made, journal_directories=part.journal_directories, data_directories=part.data_directories)
        return BookieActor, (made, metadata_url)
    if part.kind == "broker":
        return BrokerActor, (config.broker_config(part.name, port=part.port, tls_port=part.tls_port), metadata_url)
    if part.kind in ("auditor", "replicator"):
        return AuditorActor, (config.auditor_config(part.name, part.duties), metadata_url)
    assert part.kind == "gateway", "START_GROUPS names every kind"
    return GatewayActor, (
        config.gateway_config(port=part.port, metadata_url=metadata_url, dashboard_url=dashboard_url),
    )


def _with_credentials(config: ClusterConfig, metadata_url: str) -> str:
    """Return the URL with its password or the cluster's secret, which only actors get: no listing shows it."""
    metadata_url = with_secrets(metadata_url, config.secrets)
    if config.metadata_password is None:
        return metadata_url
    return with_password(metadata_url, config.metadata_password.get_secret_value())


async def _initialise(config: ClusterConfig, url: str, ours: Collection[str]) -> None:
    """Create the store's fixed nodes, and set the quorum of the default namespace to the configured one.

    Args:
        ours: names of the parts that already run.

    Raises:
        ConflictError: the store belongs to another cluster.
    """
    store = await connect_store(url, session_timeout_ms=config.session_timeout_ms)
    try:
        await initialise(store, bundles=bundles_for(config.brokers))
        if config.metadata_url is not None:  # a store that the cluster runs itself has no other cluster
            await require_vacant(store, ours, SESSION_TIMEOUTS_WAITED * config.session_timeout_ms)
        await set_default_copies(store, config.persistence)
    finally:
        await store.close()

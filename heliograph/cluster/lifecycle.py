"""Start and stop of a whole cluster from one machine: its own Ray, the actors, and the state file that finds them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr

from heliograph.auth.issuing import own_credentials
from heliograph.base.addressing.part_handle import part_names
from heliograph.base.errors import (
    ClusterNotFoundError,
    ConflictError,
    HeliographError,
    InvalidConfigError,
    ResourceError,
    UnsupportedError,
)
from heliograph.base.guard.handshake import new_secret
from heliograph.base.home import ClusterHome, ClusterState, delete_tree, private_files
from heliograph.base.peer import is_loopback
from heliograph.base.tls.authority import DIRECTORY as CERTIFICATES
from heliograph.base.tls.authority import CertificateAuthority
from heliograph.base.version import heliograph_version
from heliograph.client import discovery
from heliograph.client.access import joined_address
from heliograph.cluster import setting_report
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import launch
from heliograph.cluster.head.release import check_ray
from heliograph.cluster.head.starting import Progress, start_ray, stop_failed
from heliograph.cluster.head.storage import RayStorage, is_wanted
from heliograph.cluster.joining.record import load_record
from heliograph.cluster.settings.file import SettingsFile
from heliograph.cluster.settings.location import FILE_NAME


def up(config: ClusterConfig, progress: Progress = lambda _: None, *, metadata_only: bool = False) -> ClusterState:
    """Start the cluster, or the missing parts of it; running parts stay as they are.

    Uses the Ray that this process has joined, else the Ray of RAY_ADDRESS, else starts a Ray. This process has
    joined that Ray afterwards.

    Args:
        metadata_only: start the cluster's own metadata store and nothing else, and write nothing into it.

    Returns:
        the saved state, with the addresses of Ray, the dashboard, the metadata store and the gateway.

    Raises:
        ResourceError: a port, path, label or part is not available; names it. A Ray that this call started is stopped.
        ClusterNotFoundError: the Ray that RAY_ADDRESS names cannot be joined.
        UnsupportedError: the installed Ray is too old. Nothing was started.
        InvalidConfigError: other machines reach the cluster's address, authentication is disabled, and
            ``insecure`` is not set; or certificates of clients are required, and a door is open without one. Nothing
            was started.
        ConflictError: the cluster runs in another Ray than this process has joined, or another ``up``
            or ``down`` of the same cluster is running.
    """
    check_exposure(config)
    check_doors(config)
    check_ray(progress)
    wanted = config
    home = ClusterHome(config.home_directory)
    with private_files(), home.locked():
        if config.has_own_authority:
            _make_certificates(config, progress)
        known = _still_valid(home)
        if known is not None and known.namespace != config.namespace:
            raise ConflictError(
                f"{home.directory} belongs to the cluster {known.namespace!r}, which runs: stop it first, or give "
                f"{config.namespace!r} another --home",
                field="home",
            )
        own = own_credentials(config.auth_config(), home.directory, progress, with_gateway=config.gateway)
        config = with_secret(config.with_auth(own), home, is_running=known is not None)
        is_given = discovery.is_attached() or os.environ.get("RAY_ADDRESS")
        state, before = known, home.load()
        try:
            if state is None:
                state = _joined(config) if is_given else start_ray(config, home, progress)
            if is_first := known is None and not is_given:
                discovery.attach(config.namespace, home=home.directory, address=state.ray_address)
                _remove_ended(config, home, progress)
            state = _deploy(config, home, state, progress, is_first=is_first, metadata_only=metadata_only)
            if not metadata_only:
                keep_settings(wanted, home, progress)
            return state
        except BaseException as error:
            if known is None and not is_given:
                _stop_started(home, before, progress, error)
            raise


def _stop_started(home: ClusterHome, before: ClusterState | None, progress: Progress, error: BaseException) -> None:
    """Stop the Ray that a start has begun, which ended by ``error``; keep the logs unless a person ended it.

    Raises:
        ResourceError: it ended because Ray's raylet did; quotes its last line.
    """
    is_asked = not isinstance(error, Exception)
    if is_asked:
        progress("stopping the parts that were started")
    ended = "" if is_asked else launch.end_of_ray(home)
    discovery.detach()
    if stop_failed(home, before, keep_logs=not is_asked) and not is_asked:
        progress(f"the logs of the failed parts are in {home.failed_start}")
    if ended:
        raise ResourceError(ended) from error


@contextlib.contextmanager
def metadata_alone(config: ClusterConfig, progress: Progress = lambda _: None) -> Iterator[str]:
    """Run a stopped cluster's own metadata store, and nothing else of it, for the length of the block. Yield its URL.

    Raises:
        ConflictError: the cluster runs.
        ResourceError, ClusterNotFoundError, InvalidConfigError: the same as ``up``.
    """
    home = ClusterHome(config.home_directory)
    if home.load() is not None:
        raise ConflictError(f"the cluster of {home.directory} runs: stop it first, with helio down", field="home")
    state = up(config, progress, metadata_only=True)
    try:
        yield state.metadata_url
    finally:
        down(home, progress=progress)


def keep_settings(config: ClusterConfig, home: ClusterHome, progress: Progress) -> None:
    """Write the settings to the cluster's file at its first start; later, say which of them the file does not have."""
    if config.config_file is not None:
        return
    file = SettingsFile(home.directory / FILE_NAME)
    wanted = setting_report.given(config)
    if not file.exists():
        file.create(wanted)
        progress(f"wrote {file.path}, which the next start reads")
        return
    kept = {row.name: row.value for row in setting_report.reports(ClusterConfig(**config.own_location), file)}
    for name in sorted(name for name, value in wanted.items() if kept[name] != value):
        progress(f"{name} = {wanted[name]} for this start only ({file.path}: {kept[name]})")


def with_secret(config: ClusterConfig, home: ClusterHome, *, is_running: bool) -> ClusterConfig:
    """Return the configuration; generate a secret if none is given."""
    kept = home.secret()
    if config.secrets is not None or (is_running and kept is None):  # an earlier release started it without one
        return config
    return config.model_copy(update={"cluster_secret": SecretStr(kept or new_secret())})


def _make_certificates(config: ClusterConfig, progress: Progress) -> None:
    authority = CertificateAuthority(config.home_directory / CERTIFICATES)
    advertised = (config.broker_config("broker-1").advertised_host, config.host)
    if made := authority.ensure(name for name in advertised if name):
        progress(f"made certificates: {', '.join(made)}")
    if config.tls != "auto":
        return
    progress(
        f"clients trust {authority.certificate} (tls_ca_file, tlsTrustCertsFilePath); "
        f"{authority.file('client.pem')} and {authority.file('client.key')} are a certificate for them"
    )


def check_exposure(config: ClusterConfig) -> None:
    """Check that no stranger can use the cluster that is about to start.

    Raises:
        InvalidConfigError: strangers could.
    """
    if config.ray_on_loopback and not (is_loopback(config.host) and config.node_address is None):
        raise InvalidConfigError(
            "ray_on_loopback is for a cluster on one machine: leave host on loopback, and node_address away",
            field="ray_on_loopback",
        )
    if is_loopback(config.host) or config.insecure:
        return
    if config.has_etcd_members and config.peer_tls is None:
        raise InvalidConfigError(
            f"other machines reach {config.host}, and etcd would let everyone in: its members ask for certificates "
            "and for nothing else. Set tls to auto or give internal_tls_certificate_file, or --insecure if everyone "
            "who reaches this address may do everything",
            field="metadata_kind",
            limit="certificates of the parts, where other machines reach them",
        )
    if config.auth_config().is_enabled:
        return
    raise InvalidConfigError(
        f"other machines reach {config.host}, and authentication is disabled: set auth.enabled, or "
        "give --insecure if everyone who reaches this address may do everything",
        field="host",
        limit="a loopback address, unless auth.enabled or insecure is set",
    )


def check_doors(config: ClusterConfig) -> None:
    """Check that no door stays open to callers without a certificate, where certificates of clients are required.

    Raises:
        InvalidConfigError: one does; names each and the setting that closes it.
    """
    if not config.tls_require_client_certificate:
        return
    parts_are_open = config.peer_tls is None
    doors = {
        "the plain port of the brokers (tls_only)": not config.tls_only,
        "the gateway (gateway_tls)": config.gateway and not config.gateway_tls,
        "the bookies (internal_tls_certificate_file)": parts_are_open,
        "the embedded metadata store (internal_tls_certificate_file)": parts_are_open and config.has_embedded_store,
        "the etcd members (internal_tls_certificate_file)": parts_are_open and config.has_etcd_members,
    }
    if found := [door for door, is_open in doors.items() if is_open]:
        raise InvalidConfigError(
            f"tls_require_client_certificate is set, and callers without a certificate can use {', '.join(found)}: "
            "close each by the setting in brackets",
            field="tls_require_client_certificate",
        )


def down(home: ClusterHome, *, delete_data: bool = False, progress: Progress = lambda _: None) -> None:
    """Stop what ``up`` started: the actors, and Ray if ``up`` started it. Data stays unless ``delete_data`` is set.

    Of a cluster that this machine joined, only the node of this machine is stopped; it may join again.

    Raises:
        ClusterNotFoundError: ``home`` has no saved state.
        ConflictError: another ``up`` or ``down`` of the same cluster is running, or ``delete_data`` is set for
            the node of a cluster that another machine started.
    """
    if not home.directory.exists():
        raise ClusterNotFoundError(f"no cluster was started from {home.directory}: nothing to stop")
    with home.locked():
        state = home.load()
        if load_record(home) is not None and (state is None or state.node_address):
            _leave(home, progress, delete_data=delete_data)
            return
        if state is None:
            raise ClusterNotFoundError(f"no cluster was started from {home.directory}: nothing to stop")
        if state.own_pid:
            _require_no_process(state, home)
        else:
            _remove_actors(state, home, progress, delete_data=delete_data)
            _stop_ray(state)
        if state.ray_pid:
            RayStorage.of(home).delete()
            progress(f"Ray at {state.ray_address} has stopped")
        if delete_data and state.data_root:
            delete_tree(Path(state.data_root))
            progress(f"{state.data_root} is deleted")
            home.ray_log.unlink(missing_ok=True)
            home.forget_places()
        home.forget()


def _leave(home: ClusterHome, progress: Progress, *, delete_data: bool) -> None:
    """Stop the node of this machine: the rest of the cluster is not its own."""
    from heliograph.cluster.joining.leave import stop

    if delete_data:
        raise ConflictError(
            "this machine joined a cluster that another one started: helio leave empties its bookies",
            field="delete_data",
        )
    stop(home, progress)


def _deploy(
    config: ClusterConfig,
    home: ClusterHome,
    state: ClusterState,
    progress: Progress,
    *,
    is_first: bool,
    metadata_only: bool,
) -> ClusterState:
    from heliograph.cluster.deployment import deploy
    from heliograph.cluster.joining.view import ClusterCard, OutsideView

    discovery.attach(config.namespace, home=home.directory, address=state.ray_address)
    settings = setting_report.given(config)
    home.keep_secret(config.secrets)
    home.keep_started_with({**settings, **setting_report.given_file(config)})
    card = ClusterCard(config.namespace, heliograph_version(), config.host, config.operator)
    seen = OutsideView(state.ray_address)
    is_new = not state.ray_pid and not part_names(config.namespace)
    seen.publish(card)  # before the parts start, because they may wait for other machines to join
    try:
        deployed = deploy(config, home, progress, dashboard_url=state.dashboard_url, metadata_only=metadata_only)
    except BaseException:
        if is_new:  # and deploy has removed its parts
            seen.withdraw(config.namespace)
            home.forget()
        raise
    if state.ray_pid and is_wanted(config):
        RayStorage.of(home).keep_origin(settings, by_one_start=is_first)
    state = replace(
        state,
        metadata_url=deployed.metadata_url,
        service_url=_joined_urls(deployed.addresses),
        gateway_url=deployed.addresses.get(discovery.GATEWAY, ""),
        data_root=str(config.data_root),
        not_serving=deployed.not_serving,
    )
    state = _with_files(state, config)
    told = ("metadata_url", "service_url", "gateway_url", "tls_ca_file")
    seen.publish(replace(card, **{name: getattr(state, name) for name in told}))
    home.save(state)
    return state


def _remove_ended(config: ClusterConfig, home: ClusterHome, progress: Progress) -> None:
    """Have the parts that ended with an earlier head made again by other settings than theirs, if they changed.

    By the same settings, Ray starts them again itself.
    """
    from heliograph.cluster import diagnosis
    from heliograph.cluster.removal import remove

    storage = RayStorage.of(home)
    if not storage.is_served:
        return  # the head is the first one
    alive, ended = diagnosis.parts_beside(config.namespace)
    progress(f"Ray knows the cluster of the head before: {len(alive)} parts went on, {len(ended)} start again")
    if not storage.has_origin(setting_report.given(config)):
        remove(ended, config.namespace)


def _joined_urls(addresses: Mapping[str, str]) -> str:
    """Return ``pulsar://host:port,host:port`` of all brokers, ordered by name."""
    return joined_address([url for name, url in sorted(addresses.items()) if name.startswith(discovery.BROKER_PREFIX)])


def _with_files(state: ClusterState, config: ClusterConfig) -> ClusterState:
    """Return the state with the files of clients on this machine: the authority, and a certificate if one was made."""
    if config.tls_certificate_file is None:
        return state
    state = replace(state, tls_ca_file=str(config.trusted_authority or ""))
    if config.tls != "auto":
        return state
    authority = CertificateAuthority(config.home_directory / CERTIFICATES)
    certificate, key = (str(authority.file(name)) for name in ("client.pem", "client.key"))
    return replace(state, tls_certificate_file=certificate, tls_key_file=key)


def _joined(config: ClusterConfig) -> ClusterState:
    named = os.environ.get("RAY_ADDRESS", "")
    if named.startswith("ray://") and not discovery.is_attached():
        raise UnsupportedError(
            f"{named} is for Ray Client, which cannot start a cluster: run this on a node, with RAY_ADDRESS=host:port"
        )
    discovery.attach(config.namespace)
    address, dashboard = discovery.ray_addresses()
    return ClusterState(
        namespace=config.namespace,
        ray_address=address,
        ray_auth_mode=os.environ.get("RAY_AUTH_MODE", ""),
        dashboard_url=dashboard,
    )


def _still_valid(home: ClusterHome) -> ClusterState | None:
    """Return the saved state if its Ray still runs. A Ray that ``up`` started and that died is cleaned up first."""
    if (state := home.load()) is None:
        return None
    if state.node_address:
        raise ConflictError(
            f"this machine joined the cluster at {state.ray_address}: run helio up where that was started, or give "
            "another --home",
            field="home",
        )
    if state.own_pid:
        _require_no_process(state, home)
        return None
    if state.ray_pid:
        if launch.is_running(state.ray_process) and state.ray_address:
            return state
        _stop_ray(state)
        return None
    return state if _answers(state.ray_address) else None


def _require_no_process(state: ClusterState, home: ClusterHome) -> None:
    """Refuse to go on while another process has the whole cluster of ``home``.

    Raises:
        ConflictError: it has.
    """
    if state.own_process is not None:
        raise ConflictError(
            f"process {state.own_pid} has a cluster on {home.directory} (`helio dev` or `heliograph.local`): end it "
            "there, or give another --home",
            field="home",
        )


def _answers(ray_address: str) -> bool:
    """Return whether the saved Ray still answers and is the one that this process would join."""
    if discovery.is_attached():
        return discovery.ray_addresses()[0] == ray_address
    return os.environ.get("RAY_ADDRESS", "") in ("", ray_address) and discovery.can_reach(ray_address)


def _remove_actors(state: ClusterState, home: ClusterHome, progress: Progress, *, delete_data: bool) -> None:
    """Stop and remove the actors. A failure is ignored if Ray itself is stopped next."""
    from heliograph.cluster.joining.view import OutsideView
    from heliograph.cluster.removal import erase, remove

    if not state.ray_address:
        return  # its Ray never started
    stays = discovery.is_attached() and not state.ray_pid
    try:
        discovery.attach(state.namespace, home=home.directory, address=state.ray_address)
        names = discovery.actor_names(state.namespace)
        # Bookies first: a bookie that stops tells the metadata store.
        prefixes = (discovery.BOOKIE_PREFIX, discovery.METADATA_PREFIX) if delete_data else ()
        remove([name for name in names if not name.startswith(prefixes)], state.namespace)
        for prefix in prefixes:
            stored = [name for name in names if name.startswith(prefix)]
            for name, why in erase(stored, state.namespace).items():
                progress(f"the data of {name} may be left: {why}")
            remove(stored, state.namespace)
        progress(f"{len(names)} actors have stopped")
        OutsideView(state.ray_address).withdraw(state.namespace)
    except ClusterNotFoundError:
        progress(f"no actors of {state.namespace} are left in the Ray at {state.ray_address}")
    except HeliographError:
        if not state.ray_pid:
            raise
    finally:
        if not stays:
            discovery.detach()


def _stop_ray(state: ClusterState) -> None:
    if (process := state.ray_process) is not None:
        launch.stop_ray(process, state.ray_temporary_directory)

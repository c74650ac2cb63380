"""The directory in which this machine records a cluster that was started from it: a state file and a lock.

``<home>/cluster.json`` is replaced atomically: a reader sees the old state or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from heliograph.base.errors import ConflictError, InvalidConfigError, ResourceError
from heliograph.base.processes import ProcessName
from heliograph.base.system.processes import boot_id

DEFAULT_NAMESPACE = "heliograph"  # Ray namespace of the actors
NAMESPACE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
ADMIN_TOKEN_FILE = "admin.token"  # in the home of a cluster: the administrator's own token
ADMIN_TOKEN_RENEWED_SECONDS = 7 * 86_400  # its age from which on it is signed again when it is used, and at a start
STATE_VERSION = 1
LOGS = "logs"  # directory of the parts' logs, below the home of the cluster
PRIVATE_UMASK = 0o077
PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600


def default_state_root() -> Path:
    """Return the directory above the homes of all clusters: ``HELIOGRAPH_STATE_ROOT`` or ``~/.heliograph``."""
    return Path(os.environ.get("HELIOGRAPH_STATE_ROOT", "~/.heliograph")).expanduser()


def home_directory(namespace: str | None = None, home: Path | None = None) -> Path:
    """Return the directory in which this machine records a cluster, whether it exists or not.

    Args:
        namespace: of the cluster; None takes HELIOGRAPH_NAMESPACE, else ``heliograph``.
        home: the directory; None takes HELIOGRAPH_HOME, else ``<state root>/<namespace>``.

    Raises:
        InvalidConfigError: the namespace is no name of a Ray namespace.
    """
    name = namespace or os.environ.get("HELIOGRAPH_NAMESPACE") or DEFAULT_NAMESPACE
    if re.match(NAMESPACE_PATTERN, name) is None:
        raise InvalidConfigError(f"namespace is {name!r}", field="namespace", limit=f"pattern {NAMESPACE_PATTERN}")
    named = home or os.environ.get("HELIOGRAPH_HOME")
    return Path(named).expanduser().absolute() if named else default_state_root() / name


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The record by which a cluster is found again, and the processes that were started for it are stopped.

    Attributes:
        namespace: Ray namespace of the actors.
        ray_address, ray_auth_mode: How to join the Ray cluster.
        dashboard_url, metadata_url, service_url, gateway_url: Where to reach the parts; ``service_url`` names all
            brokers, in the form that clients take.
        tls_ca_file, tls_certificate_file, tls_key_file: Files of TLS for clients on this machine; empty: none.
        data_root: Directory of the bookies' and the metadata store's data.
        ray_pid, ray_start_ticks: The Ray head that ``helio up`` started; both are 0 if it joined a running Ray cluster,
            which ``helio down`` must not stop then.
        ray_temporary_directory: Directory of that Ray head's own files.
        own_pid, own_start_ticks: The process that has all parts of a cluster without Ray; both are 0 for one in Ray.
        admin_socket: Path of the Unix socket of that process for administrative calls; empty: none.
        node_address: Address of this machine's node, if ``helio join`` brought it into a cluster that another machine
            started; empty otherwise.
        boot_id: The boot of the machine within which ``ray_pid`` and ``own_pid`` are valid.
        version: Version of this file's format.
    """

    namespace: str
    ray_address: str
    ray_auth_mode: str
    dashboard_url: str = ""
    metadata_url: str = ""
    service_url: str = ""
    gateway_url: str = ""
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    data_root: str = ""
    ray_pid: int = 0
    ray_start_ticks: int = 0
    ray_temporary_directory: str = ""
    boot_id: str = ""
    ray_on_loopback: bool = False
    own_pid: int = 0
    own_start_ticks: int = 0
    admin_socket: str = ""
    node_address: str = ""
    not_serving: Mapping[str, str] = field(default_factory=dict)  # of the last start: parts and reasons
    version: int = STATE_VERSION

    @property
    def lacks_addresses(self) -> bool:
        """Return whether this machine joined a cluster before its parts served, and so noted no addresses of them."""
        return bool(self.node_address) and not self.metadata_url

    @property
    def ray_process(self) -> ProcessName | None:
        """Return the Ray head that ``helio up`` started, or None if there is none or the machine was booted since."""
        if self.ray_pid == 0 or self.boot_id != boot_id():
            return None
        return ProcessName(self.ray_pid, self.ray_start_ticks)

    @property
    def own_process(self) -> ProcessName | None:
        """Return the process of a cluster without Ray while it runs; None for a cluster in Ray or if it has ended."""
        if self.own_pid == 0 or self.boot_id != boot_id():
            return None
        process = ProcessName(self.own_pid, self.own_start_ticks)
        return process if process.is_alive() else None


class ClusterHome:
    """The directory of one cluster on this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file = directory / "cluster.json"
        self._secret = directory / "cluster.secret"
        self._places = directory / "places.json"
        self._members = directory / "etcd-members.json"
        self._started_with = directory / "started-with.json"

    @property
    def ray_log(self) -> Path:
        return self.directory / "ray.log"

    @property
    def failed_start(self) -> Path:
        """Return the path of Ray's logs of the last start that failed."""
        return self.directory / "failed-start"

    def prepare(self) -> None:
        """Make the directory if it is missing, and close it to other users.

        Raises:
            ResourceError: It cannot be made or written, belongs to another user, or is a directory that users share.
        """
        require_writable(self.directory, "home")
        close_to_others(self.directory, "home")
        for folder in (self.directory / LOGS, self.failed_start):
            if folder.is_dir():
                make_private(folder)

    def load(self) -> ClusterState | None:
        """Return the recorded state, or None.

        Raises:
            ResourceError: The file cannot be read, or another version wrote it.
        """
        try:
            fields: dict[str, Any] = json.loads(self._file.read_text())
            if fields.get("version") != STATE_VERSION:
                raise ResourceError(
                    f"{self._file} was written by another version of helio: stop that cluster with the version that "
                    "started it, or delete the file"
                )
            known = {item.name for item in dataclass_fields(ClusterState)}
            return ClusterState(**{name: value for name, value in fields.items() if name in known})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ResourceError(f"{self._file} cannot be read ({error}): delete it if no cluster runs") from error

    def save(self, state: ClusterState) -> None:
        """Record ``state``.

        Fields with their defaults are left out: 0.1.0, to which a cluster may go back, refuses a field that it lacks.
        """
        required = ("namespace", "ray_address", "ray_auth_mode", "version")
        defaults = asdict(ClusterState("", "", ""))
        kept = {name: value for name, value in asdict(state).items() if name in required or value != defaults[name]}
        replace_private(self._file, (json.dumps(kept, indent=2) + "\n").encode())

    def forget(self, *, keep_secret: bool = False) -> None:
        """Delete the recorded state, with the secret unless it is to be kept."""
        self._file.unlink(missing_ok=True)
        if not keep_secret:
            self._secret.unlink(missing_ok=True)
        self._started_with.unlink(missing_ok=True)

    def keep_places(self, places: Mapping[str, Any]) -> None:
        """Record the places of parts with data, for every later start."""
        self.prepare()
        replace_private(self._places, (json.dumps({**self.places(), **places}, indent=2) + "\n").encode())

    def places(self) -> dict[str, Any]:
        """Return where parts with data run, by name; nothing before the first start.

        Raises:
            ResourceError: the file cannot be read.
        """
        try:
            found: dict[str, Any] = json.loads(self._places.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ResourceError(f"{self._places} cannot be read ({error})") from error
        return found

    def forget_place(self, name: str) -> None:
        """Forget the place of a part that has left for good."""
        places = {each: place for each, place in self.places().items() if each != name}
        replace_private(self._places, (json.dumps(places, indent=2) + "\n").encode())

    def forget_places(self) -> None:
        """Delete the records of places and of etcd members, when the data is deleted."""
        self._places.unlink(missing_ok=True)
        self._members.unlink(missing_ok=True)

    def keep_members(self, membership: Mapping[str, Any]) -> None:
        """Record the etcd members that the cluster runs itself, for every later start."""
        self.prepare()
        replace_private(self._members, (json.dumps(dict(membership), indent=2) + "\n").encode())

    def members(self) -> dict[str, Any] | None:
        """Return the record of the etcd members; None before their first start.

        Raises:
            ResourceError: the file cannot be read.
        """
        try:
            found: dict[str, Any] = json.loads(self._members.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ResourceError(f"{self._members} cannot be read ({error})") from error
        return found

    def keep_started_with(self, settings: Mapping[str, Any]) -> None:
        """Record the settings that the cluster was started with, but for secrets, by full names."""
        replace_private(self._started_with, (json.dumps(dict(settings), indent=2) + "\n").encode())

    def started_with(self) -> dict[str, Any] | None:
        """Return the settings that the cluster was started with; None if none runs, as far as is known."""
        try:
            found: dict[str, Any] = json.loads(self._started_with.read_text())
        except (OSError, ValueError):
            return None
        return found

    def keep_secret(self, secret: str | None) -> None:
        """Keep the cluster's secret for commands of the user who started it, in a file that nobody else can read."""
        if secret is None:
            self._secret.unlink(missing_ok=True)
            return
        replace_private(self._secret, secret.encode())

    def secret(self) -> str | None:
        """Return the cluster's secret; None if it has none, or this user may not read it."""
        try:
            return self._secret.read_text() or None
        except OSError:
            return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the cluster against being started or stopped by another process.

        Raises:
            ConflictError: Another process holds the lock.
        """
        import fcntl  # Windows has none

        self.prepare()
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConflictError(f"another helio up or down is using {self.directory}: wait for it to end") from None
            yield


def close_to_others(directory: Path, setting: str) -> None:
    """Close an existing directory of this user to all other users.

    A directory of root, such as the volume of a container, stays as it is unless everyone may write in it.

    Args:
        setting: Name of the setting that the directory comes from.

    Raises:
        ResourceError: Another user owns the directory, or it is one that users share, such as ``/tmp``; names it.
    """
    found = directory.stat()
    is_shared = bool(found.st_mode & stat.S_ISVTX) or directory == directory.parent
    if found.st_uid == os.geteuid() and not is_shared:
        directory.chmod(PRIVATE_DIRECTORY)
        return
    if found.st_uid != 0 or is_shared or found.st_mode & stat.S_IWOTH:
        what = "is shared by all users" if is_shared else f"belongs to another user (uid {found.st_uid})"
        raise ResourceError(
            f"{setting} {directory} {what}, who could read and replace the cluster's files: choose a directory of "
            f"uid {os.geteuid()} with --{setting.replace('_', '-')}",
            field=setting,
        )


def make_private(directory: Path) -> None:
    """Make a directory that only its owner can look into, or close an existing one to others.

    A directory of another owner is left as it is.
    """
    directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):
        directory.chmod(PRIVATE_DIRECTORY)


def replace_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, durably: it holds its old content or the new one, also after a crash.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)  # of an attempt before, perhaps open to others
    from heliograph.base.system.files import sync  # Windows has no fcntl, and only reads

    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb") as file:
        file.write(content)
        file.flush()
        sync(file.fileno())
    os.replace(temporary, path)


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Have all files that this process makes meanwhile be its user's own: messages and secrets are in them."""
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def require_writable(directory: Path, setting: str) -> None:
    """Make ``directory`` if it is missing, and check that it can be written.

    Args:
        setting: Name of the setting that the directory comes from.

    Raises:
        ResourceError: It cannot be made or written; the message names the path and the setting.
    """
    probe = directory / ".writable"
    try:
        directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ResourceError(
            f"{setting} {directory} cannot be written ({error.strerror}): choose another with "
            f"--{setting.replace('_', '-')}",
            field=setting,
        ) from error


def delete_tree(directory: Path) -> None:
    """Delete a directory with everything in it; missing files and failures are ignored."""
    shutil.rmtree(directory, ignore_errors=True)

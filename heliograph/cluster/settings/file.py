"""The configuration file of a cluster: written at its first start, and changed without losing what its owner wrote."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import tomlkit
from pydantic import SecretStr
from tomlkit.container import Container
from tomlkit.items import Table

from heliograph.base.errors import InvalidConfigError
from heliograph.base.home import DEFAULT_NAMESPACE, PRIVATE_FILE, PRIVATE_UMASK, default_state_root, replace_private
from heliograph.cluster.settings.declared import ClusterSettings
from heliograph.cluster.settings.location import FILE_NAME
from heliograph.cluster.settings.sections import SECTIONS, from_file, lifted

NOT_IN_FILES = ("config_file", "sections")
_HEADER = (
    "The settings of this cluster, as its first start got them. What is given here holds at each start;",
    "`helio config show` lists all settings, `helio config explain NAME` says what one means, and",
    "`helio config set NAME VALUE` changes one here. Environment and flags of `helio up` go before this file.",
)


class SettingsFile:
    """One file of TOML: settings of the cluster at its top, a table for each section."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return self.path.exists()

    def create(self, values: Mapping[str, Any]) -> None:
        """Write a file that holds these settings by their full names.

        Raises:
            OSError: it cannot be written.
        """
        document = tomlkit.document()
        for line in _HEADER:
            document.add(tomlkit.comment(line))
        document.add(tomlkit.nl())
        for name in sorted(values, key=lambda name: ("." in name, name)):  # tables follow all settings of the cluster
            _put(document, name, values[name])
        self._write(document)

    def values(self) -> dict[str, Any]:
        """Return the settings in the file, by full names; none if there is no file.

        Raises:
            InvalidConfigError: the file cannot be read or is no TOML.
        """
        return dict(flat(from_file(self.path))) if self.exists() else {}

    def text_with(self, name: str, value: Any) -> str:
        """Return the text of the file with another value of a setting."""
        document = self._document()
        _put(document, name, value)
        return tomlkit.dumps(document)

    def text_without(self, name: str) -> str:
        """Return the text of the file without a setting.

        Raises:
            InvalidConfigError: the file does not have it.
        """
        document = self._document()
        *path, last = name.split(".")
        table: Any = document
        for part in path:
            table = table.get(part, {})
        if last not in table:
            raise InvalidConfigError(f"{self.path} does not set {name}", field=name)
        del table[last]
        return tomlkit.dumps(document)

    def replace(self, text: str) -> None:
        """Replace the file; it has its old text or the new one, also after a crash.

        Raises:
            OSError: it cannot be written.
        """
        replace_private(self.path, text.encode())

    def _document(self) -> tomlkit.TOMLDocument:
        if not self.exists():
            return tomlkit.document()
        from_file(self.path)  # raises what is wrong with it
        return tomlkit.parse(self.path.read_text())

    def _write(self, document: tomlkit.TOMLDocument) -> None:
        self.replace(tomlkit.dumps(document))


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested tables as pairs of full names, with dots, and values."""
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, value))
    return found


def plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in value]
    return value


def _put(document: Container | tomlkit.TOMLDocument, name: str, value: Any) -> None:
    *path, last = name.split(".")
    table: Any = document
    for part in path:
        if not isinstance(table.get(part), Table | Mapping):
            table[part] = tomlkit.table(is_super_table=part != path[-1])
        table = table[part]
    table[last] = plain(value)


def file_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the configuration file that arguments and environment name, or of the usual one."""
    named = given.get("config_file")
    if named is not None:
        path = Path(named).expanduser()
        refused: tuple[str, ...] = NOT_IN_FILES
    else:
        home = given.get("home") or default_state_root() / str(given.get("namespace", DEFAULT_NAMESPACE))
        path = Path(home).expanduser() / FILE_NAME
        refused = (*NOT_IN_FILES, "home", "namespace")
        if not path.exists():
            return {}
    values = from_file(path)
    _require_private(path, values)
    for name in refused:
        if name in values:
            raise InvalidConfigError(f"{name} cannot be set in {path}, which is found by it", field=name)
    return lifted(values)


def is_path(value: Any) -> bool:
    """Return whether the value of a secret setting is the place of a file that holds it."""
    return str(value).startswith(("file:", "/"))


def _require_private(path: Path, values: Mapping[str, Any]) -> None:
    """Close a file with a secret in it to other users.

    Raises:
        InvalidConfigError: they can read or write it, and this user may not change that; names the secrets.
    """
    own = {name for name, field in ClusterSettings.model_fields.items() if SecretStr in get_args(field.annotation)}
    names = {each.name for section in SECTIONS.values() for each in section.settings() if each.setting.is_secret}
    given = [(name, value) for name, value in flat(values) if value]
    held = [name for name, value in given if name in own or (name in names and not is_path(value))]
    found = path.stat()
    if not held or (found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & PRIVATE_UMASK):
        return
    try:
        if found.st_uid not in (os.geteuid(), 0):
            raise PermissionError
        if found.st_mode & PRIVATE_UMASK:
            path.chmod(PRIVATE_FILE)
    except OSError:
        raise InvalidConfigError(
            f"{path} holds {', '.join(held)}, and uid {found.st_uid} or others can read or write it (mode "
            f"{stat.S_IMODE(found.st_mode):o}): give it to uid {os.geteuid()} with mode 600",
            field=held[0],
            limit="mode 600",
        ) from None

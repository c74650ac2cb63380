"""Finds the directories of a stopped bookie, reads their cookie, and locks them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heliograph.actors.bookie.cookies import COOKIE_NAME
from heliograph.actors.bookie.disk.disk import Disk, ReadOnlyDisk, read_file
from heliograph.actors.bookie.journal.files import used_ids
from heliograph.actors.bookie.recovery.opening import LOCK_NAME
from heliograph.actors.bookie.store.data_directory import INDEX_NAME
from heliograph.actors.errors import BookieStorageError
from heliograph.base.errors import BadRequestError
from heliograph.metadata import codec
from heliograph.metadata.bookie_records import Cookie
from heliograph.metadata.errors import RecordError


@dataclass(frozen=True, slots=True)
class Folders:
    """The directories of one bookie, in the order of its cookie, or by name without a sound cookie."""

    journals: list[Path]
    data: list[Path]
    cookie: Cookie | None
    damage: list[str]

    @property
    def all(self) -> list[Path]:
        """All directories, each once."""
        return list(dict.fromkeys([*self.journals, *self.data]))


def find_folders(roots: Sequence[Path]) -> Folders:
    """Find the bookie's directories among ``roots`` and directly below them.

    Raises:
        BadRequestError: there is none.
        BookieStorageError: a folder cannot be listed.
    """
    disk = ReadOnlyDisk()
    found: list[Path] = []
    for root in roots:
        if not root.is_dir():
            raise BadRequestError(f"{root} is no directory", field="directory")
        below = sorted(child for child in root.iterdir() if child.is_dir() and child.name != INDEX_NAME)
        found += [path.absolute() for path in (root, *below)]
    data = [path for path in dict.fromkeys(found) if (path / INDEX_NAME).is_dir()]
    journals = [path for path in dict.fromkeys(found) if used_ids(disk, path)]
    if not data and not journals:
        names = ", ".join(str(root) for root in roots)
        raise BadRequestError(f"{names}: there are neither journals nor entry logs of a bookie", field="directory")
    cookies, damage = _cookies(disk, [*journals, *data])
    cookie = max(cookies.values(), key=lambda one: one.start, default=None)
    if cookie is not None:
        journals = _in_order(journals, cookie.journal_directories, cookies)
        data = _in_order(data, cookie.data_directories, cookies)
    return Folders(journals, data, cookie, damage)


@contextlib.contextmanager
def held(folders: Folders) -> Iterator[None]:
    """Keep the bookie from starting while its directories are read. Changes nothing.

    Raises:
        DirectoryLockedError: the bookie is running.
    """
    disk = ReadOnlyDisk()
    with contextlib.ExitStack() as locks:
        for directory in folders.all:
            if disk.exists(directory / LOCK_NAME):  # a copy may have no lock file, and no bookie uses it
                locks.callback(disk.lock(directory / LOCK_NAME).release)
        yield


def _cookies(disk: Disk, directories: Sequence[Path]) -> tuple[dict[Path, Cookie], list[str]]:
    cookies: dict[Path, Cookie] = {}
    damage: list[str] = []
    for directory in dict.fromkeys(directories):
        path = directory / COOKIE_NAME
        try:
            cookies[directory] = codec.decode(Cookie, read_file(disk, path))
        except FileNotFoundError:
            damage.append(f"{path} is missing")
        except (RecordError, BookieStorageError) as error:
            damage.append(f"{path}: {error}")
    if len({(cookie.bookie_id, cookie.instance_id) for cookie in cookies.values()}) > 1:
        damage.append(f"cookies differ: {', '.join(str(path) for path in cookies)} are not of one bookie")
        return {}, damage
    return cookies, damage


def _in_order(found: list[Path], named: Sequence[str], cookies: Mapping[Path, Cookie]) -> list[Path]:
    """Sort by the cookie's order: by the directory's id, or in layout 1 by its path or the last part of that."""
    by_id = {name: number for number, name in enumerate(named)}
    by_name = {Path(name).name: number for number, name in enumerate(named)}

    def place(path: Path) -> tuple[int, str]:
        own = cookies[path].directory if path in cookies else ""
        return by_id.get(own or str(path), by_name.get(path.name, len(named))), str(path)

    return sorted(found, key=place)

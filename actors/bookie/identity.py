"""The rules of cookies: which directory is which, what was lost, and the cookie of the next start. No I/O.

A cookie proves identity and role, not a path. A directory is known by the id in its cookie, wherever it is mounted; an
empty directory has none. The newest cookie of the bookie, the one in metadata, lists the ids of all directories.

    the directory holds                         it is
    the newest cookie, or its draft             itself
    an older cookie of the same directory       an old copy: what was acknowledged since is missing, as after a loss
    a cookie of another bookie or cluster       refused
    a cookie of an id that is not listed        refused: the directory was replaced
    nothing, and an id is missing               in the place of a lost directory
    nothing, and no id is missing               a new directory, which joins

A loss is refused unless it was accepted. A bookie that went on as if nothing were missing would deny entries that it
acknowledged and forget fences (I4, I6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.errors import CookieMismatchError
from heliograph.metadata.bookie_records import Cookie

LAYOUT = 2
_WAY_OUT = "Mount the right directory, or give the bookie an empty one"


@dataclass(frozen=True, slots=True)
class Found:
    """The cookies and drafts in the directories, and the directories that hold other files of a bookie."""

    cookies: dict[Path, Cookie] = field(default_factory=dict)
    drafts: dict[Path, Cookie] = field(default_factory=dict)
    occupied: set[Path] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a start. The journals and data directories are in the order of the cookie."""

    cookie: Cookie  # of this start; ``directory`` is empty
    journals: tuple[Path, ...]
    data: tuple[Path, ...]
    lost: tuple[Path, ...] = ()  # empty, where data was
    outdated: tuple[Path, ...] = ()  # old copies: what was acknowledged since they were made is missing
    joining: tuple[Path, ...] = ()  # empty, and new

    @property
    def is_loss(self) -> bool:
        """Whether entries or fences that the bookie acknowledged may be missing."""
        return bool(self.lost or self.outdated)

    def cookie_of(self, path: Path) -> Cookie:
        """Return the cookie to be written into a directory."""
        if path in self.journals:
            return replace(self.cookie, directory=self.cookie.journal_directories[self.journals.index(path)])
        return replace(self.cookie, directory=self.cookie.data_directories[self.data.index(path)])


def newest(bookie_id: str, instance_id: str, stored: Cookie | None, found: Found, *, has_store: bool) -> Cookie | None:
    """Return the newest cookie of the bookie, with an empty ``directory``; None for a new bookie.

    The one in metadata counts, unless metadata came back from a backup: then a directory has a newer one of the same
    bookie. Without metadata, the newest of the directories counts.

    Raises:
        CookieMismatchError: a cookie is of another bookie or cluster; or metadata has none, and a directory holds data.
    """
    for path, cookie in found.cookies.items():
        if cookie.bookie_id != bookie_id:
            raise _differs(str(path), "bookie id", cookie.bookie_id, bookie_id)
        if cookie.instance_id != instance_id:
            raise _differs(str(path), "instance id", cookie.instance_id, instance_id)
    copies = sorted((replace(cookie, directory="") for cookie in found.cookies.values()), key=lambda one: one.start)
    if not has_store:
        return copies[-1] if copies else None
    if stored is None:
        if found.cookies:
            names = ", ".join(map(str, found.cookies))
            raise CookieMismatchError(
                f"metadata has no cookie of bookie {bookie_id}, but {names} holds its data: it was retired, "
                "or metadata was lost",
                way_out="Restore the metadata, or give the bookie empty directories",
            )
        return None
    if stored.instance_id != instance_id:
        raise _differs("the cookie in metadata", "instance id", stored.instance_id, instance_id)
    if copies and copies[-1].start > stored.start and _is_successor(copies[-1], stored):
        return copies[-1]
    return stored


def plan(
    config: BookieConfig,
    instance_id: str,
    truth: Cookie | None,
    found: Found,
    *,
    accepts_loss: bool,
    last_ledger_id: int | None,
    new_id: Callable[[], str],
) -> Plan:
    """Return the plan of a start.

    Args:
        truth: the cookie that ``newest`` returned.
        accepts_loss: lost and outdated directories are accepted; the caller puts ledgers into limbo.
        last_ledger_id: the last ledger id that was assigned; None without metadata, when no directory may join.
        new_id: returns a random id.

    Raises:
        CookieMismatchError: a directory is not this bookie's, was lost, or is missing; names what differs.
    """
    paths = list(dict.fromkeys([*config.journal_directories, *config.data_directories]))
    if truth is None:
        cookie = _first_cookie(config, instance_id, paths, new_id)
        return Plan(cookie, config.journal_directories, config.data_directories)
    known, outdated = _known(paths, truth, found)
    if truth.layout_version == 1:
        _recognise_moved(config, truth, found, known)
    _check_roles(config, truth, known)
    if outdated and not accepts_loss:
        path = outdated[0]
        raise CookieMismatchError(
            f"{path} is an old copy of this bookie's directory: it is of start {found.cookies[path].start}, and the "
            f"bookie was started {truth.start} times. Entries acknowledged since then are missing in it",
            way_out="Mount the newest copy, or accept the loss as for an empty disk: helio bookies replace",
        )
    journals, lost_journals, new_journals = _places(
        "journal", config.journal_directories, truth.journal_directories, known, accepts_loss=accepts_loss, truth=truth
    )
    data, lost_data, new_data = _places(
        "data", config.data_directories, truth.data_directories, known, accepts_loss=accepts_loss, truth=truth
    )
    lost = tuple(dict.fromkeys([*lost_journals, *lost_data]))
    joining = tuple(path for path in dict.fromkeys([*new_journals, *new_data]) if path not in lost)
    _check_joining(joining, found, known, last_ledger_id, accepts_loss=accepts_loss)
    # Ids of layout 1 are paths: they are replaced, too.
    ids = {
        path: new_id() if path not in known or truth.layout_version == 1 else known[path] for path in (*journals, *data)
    }
    routes = truth.routes or ((0, len(truth.data_directories)),)
    if len(data) != routes[-1][1]:
        assert last_ledger_id is not None, "directories join with metadata only"
        routes = (*(route for route in routes if route[0] <= last_ledger_id), (last_ledger_id + 1, len(data)))
    cookie = Cookie(
        config.bookie_id,
        instance_id,
        tuple(ids[path] for path in journals),
        tuple(ids[path] for path in data),
        LAYOUT,
        start=truth.start + 1,
        token=new_id(),
        routes=routes,
    )
    return Plan(cookie, tuple(journals), tuple(data), lost, tuple(outdated), joining)


def check_stored(stored: Cookie | None, own: Cookie) -> None:
    """Check that metadata knows this start of the bookie. Metadata restored from a backup may have an earlier start.

    Raises:
        CookieMismatchError: the metadata is another cluster's or was emptied, or the bookie was started elsewhere.
    """
    if stored == own:
        return
    if stored is None:
        what = f"metadata has no cookie of bookie {own.bookie_id}"
    elif stored.instance_id != own.instance_id:
        what = f"the instance id in metadata is {stored.instance_id!r}, and was {own.instance_id!r}"
    elif stored.start < own.start and _is_successor(own, stored):
        return
    elif stored.start >= own.start:
        raise CookieMismatchError(
            f"bookie {own.bookie_id} was started elsewhere, on a copy of its directories (start {stored.start}, this "
            f"is {own.start}): this process stops. Keep one copy, the one that serves, and remove the other"
        )
    else:
        what = f"metadata lists other directories of bookie {own.bookie_id}"
    raise CookieMismatchError(
        f"{what}. Metadata was lost or replaced under a running bookie, or the bookie was retired: it stops, and "
        "deletes nothing. Restore the metadata before it starts again"
    )


def _first_cookie(config: BookieConfig, instance_id: str, paths: Sequence[Path], new_id: Callable[[], str]) -> Cookie:
    ids = {path: new_id() for path in paths}
    return Cookie(
        config.bookie_id,
        instance_id,
        tuple(ids[path] for path in config.journal_directories),
        tuple(ids[path] for path in config.data_directories),
        LAYOUT,
        start=1,
        token=new_id(),
        routes=((0, len(config.data_directories)),),
    )


def _is_successor(newer: Cookie, older: Cookie) -> bool:
    """Return whether two cookies are of one bookie, and not of two that had the same name one after the other."""
    if older.layout_version == 1:
        return True
    ids = {*older.journal_directories, *older.data_directories}
    return not ids.isdisjoint((*newer.journal_directories, *newer.data_directories))


def _known(paths: Sequence[Path], truth: Cookie, found: Found) -> tuple[dict[Path, str], list[Path]]:
    """Return the ids of the directories that have one, and the ids of old copies."""
    known: dict[Path, str] = {}
    outdated: list[Path] = []
    ids = {*truth.journal_directories, *truth.data_directories}
    for path in paths:
        cookie, draft = found.cookies.get(path), found.drafts.get(path)
        if draft is not None and replace(draft, directory="") == truth:
            known[path] = draft.directory  # the start that wrote it ended after metadata had the cookie
        elif cookie is None:
            continue
        elif truth.layout_version == 1:
            if replace(cookie, directory="") != truth:
                raise CookieMismatchError(
                    f"{path} belongs to another set of directories than metadata", way_out=_WAY_OUT
                )
            if str(path) in ids:
                known[path] = str(path)
        elif cookie.directory not in ids:
            raise CookieMismatchError(
                f"{path} holds a directory that is no part of bookie {truth.bookie_id} any more: it was replaced, and "
                "its data is outdated",
                way_out=_WAY_OUT,
            )
        else:
            known[path] = cookie.directory
            if replace(cookie, directory="") != truth:
                outdated.append(path)
    by_id: dict[str, Path] = {}
    for path, directory in known.items():
        if directory in by_id:
            raise CookieMismatchError(f"{path} and {by_id[directory]} are copies of one directory: configure one")
        by_id[directory] = path
    return known, outdated


def _recognise_moved(config: BookieConfig, truth: Cookie, found: Found, known: dict[Path, str]) -> None:
    """Add directories of layout 1 that were moved, each of which has to be the only one of its role.

    Raises:
        CookieMismatchError: several were moved, and which is which is unknown.
    """
    for role, configured, listed in (
        ("journal", config.journal_directories, truth.journal_directories),
        ("data", config.data_directories, truth.data_directories),
    ):
        moved = [path for path in configured if path not in known and path in found.cookies]
        missing = [name for name in listed if name not in known.values()]
        if not moved:
            continue
        if len(moved) > 1 or len(missing) != 1:
            raise CookieMismatchError(
                f"several {role} directories were moved, and their cookies are of an older version that does not say "
                f"which is which: start the bookie once with {', '.join(listed)}, then move them"
            )
        known[moved[0]] = missing[0]


def _check_roles(config: BookieConfig, truth: Cookie, known: dict[Path, str]) -> None:
    for role, other, configured, listed in (
        ("journal", "data", config.journal_directories, truth.journal_directories),
        ("data", "journal", config.data_directories, truth.data_directories),
    ):
        for path in configured:
            if path in known and known[path] not in listed:
                raise CookieMismatchError(
                    f"{path} is a {other} directory of bookie {truth.bookie_id}, and is configured as a {role} "
                    f"directory: its role differs. Configure it as a {other} directory"
                )


def _places(
    role: str,
    configured: Sequence[Path],
    listed: Sequence[str],
    known: dict[Path, str],
    *,
    accepts_loss: bool,
    truth: Cookie,
) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the directories of a role in order, the lost ones, and the joining ones."""
    by_id = {known[path]: path for path in configured if path in known}
    empty = [path for path in configured if path not in known]
    missing = [name for name in listed if name not in by_id]
    if missing and not accepts_loss:
        raise _lost(truth, role, listed, missing, empty)
    if len(missing) > len(empty):
        raise CookieMismatchError(
            f"bookie {truth.bookie_id} has {len(listed)} {role} directories, and {len(configured)} are configured: "
            f"configure an empty directory for each that is missing ({', '.join(missing)})"
        )
    filled = dict(zip(missing, empty, strict=False))
    places = [by_id[name] if name in by_id else filled[name] for name in listed]
    joining = empty[len(missing) :]
    return [*places, *joining], list(filled.values()), joining


def _lost(
    truth: Cookie, role: str, listed: Sequence[str], missing: Sequence[str], empty: Sequence[Path]
) -> CookieMismatchError:
    numbers = ", ".join(f"{listed.index(name) + 1} of {len(listed)} ({name})" for name in missing)
    where = ", ".join(map(str, empty))
    now = f"{where} is empty now: a disk was lost or swapped" if empty else "it is not configured any more"
    return CookieMismatchError(
        f"bookie {truth.bookie_id} misses {role} directory {numbers}; {now}",
        way_out="Three ways out: (1) mount the right disk, at any path, and start again; (2) helio bookies replace "
        f"{truth.bookie_id} --empty-disk, or one start with accept_storage_loss: it serves what it has, answers "
        "'unknown' for the rest and is repaired from the other bookies; (3) retire the bookie: helio bookies "
        f"decommission {truth.bookie_id}, and start a new one on empty directories",
    )


def _check_joining(
    joining: Sequence[Path],
    found: Found,
    known: dict[Path, str],
    last_ledger_id: int | None,
    *,
    accepts_loss: bool,
) -> None:
    if not joining:
        return
    names = ", ".join(map(str, joining))
    if last_ledger_id is None:
        raise CookieMismatchError(
            f"{names} cannot join the bookie, which runs without metadata: start it with metadata"
        )
    if not known and not accepts_loss:
        raise CookieMismatchError(f"{names} cannot join: no other directory proves whose they are")
    for path in joining:
        if path in found.occupied and path not in found.drafts:
            raise CookieMismatchError(
                f"{path} has no cookie, and holds files of a bookie: only an empty directory joins", way_out=_WAY_OUT
            )


def _differs(where: str, what: str, found: str, expected: str) -> CookieMismatchError:
    whose = "another bookie" if what == "bookie id" else "another cluster"
    return CookieMismatchError(
        f"{where} is of {whose}: its {what} is {found!r}, this bookie's is {expected!r}", way_out=_WAY_OUT
    )

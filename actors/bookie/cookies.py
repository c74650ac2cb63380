"""Cookies on disks and in metadata: read at the start of a bookie, and written by each start.

A cookie ties a bookie's name to its directories. A bookie on a wrong or empty disk would deny entries that it
acknowledged and forget fences, so it must not start (I6). ``identity.py`` has the rules.

A start writes its cookie in three steps: drafts in all directories, the cookie in metadata if that is still the one
that was read, then every draft gets its final name. The first step comes before the storage is opened, the others when
everything that the start restored is durable. A start after a crash knows a directory by its cookie or by a draft that
equals the cookie in metadata. Two starts cannot both write metadata: the second one stops, and neither has served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heliograph.actors.bookie.disk.disk import Disk, read_file, replace_file
from heliograph.actors.bookie.identity import Found, Plan, check_stored
from heliograph.actors.errors import CookieMismatchError
from heliograph.metadata import codec, paths
from heliograph.metadata.bookie_records import BookieReplacement, Cookie
from heliograph.metadata.errors import BadVersionError, NodeExistsError, NoNodeError, RecordError
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore

COOKIE_NAME = "cookie"
DRAFT_NAME = "cookie.draft"
_FILES = ("mark", "index")  # of a data directory
_ENDINGS = (".journal", ".log", ".kept")


@dataclass(frozen=True, slots=True)
class Stored:
    """The cookie in metadata, and the version of its node; None if there is none."""

    cookie: Cookie | None
    version: int | None


async def instance_of(store: MetadataStore | None) -> str:
    """Return the id of the cluster that the metadata is of; empty without metadata."""
    return "" if store is None else (await initialise(store)).instance_id


async def stored_cookie(store: MetadataStore | None, bookie_id: str) -> Stored:
    """Return the cookie in metadata.

    Raises:
        MetadataError: the store did not answer.
    """
    if store is None:
        return Stored(None, None)
    await store.sync()  # a server that is behind may have an older one
    try:
        value, stat = await store.get(paths.bookie_cookie(bookie_id))
    except NoNodeError:
        return Stored(None, None)
    return Stored(codec.decode(Cookie, value), stat.version)


async def may_replace(store: MetadataStore | None, truth: Cookie | None) -> bool:
    """Return whether an operator let this start of the bookie accept empty directories.

    Raises:
        MetadataError: the store did not answer.
    """
    if store is None or truth is None:
        return False
    try:
        value, _ = await store.get(paths.bookie_replacement(truth.bookie_id))
        return codec.decode(BookieReplacement, value) == BookieReplacement(truth.bookie_id, truth.start)
    except (NoNodeError, RecordError):
        return False


async def recognise(store: MetadataStore, own: Cookie) -> None:
    """Check that metadata knows this bookie, so that a missing ledger was deleted and not lost (I14).

    Raises:
        CookieMismatchError: the metadata is another cluster's or was emptied, or the bookie was started elsewhere.
        MetadataError: the store did not answer.
    """
    check_stored((await stored_cookie(store, own.bookie_id)).cookie, own)


def read_cookies(disk: Disk, directories: Sequence[Path]) -> Found:
    """Read the cookies and drafts in the directories. Blocks.

    Raises:
        CookieMismatchError: a cookie is damaged or of a newer version.
        BookieStorageError: a directory cannot be read.
    """
    found = Found()
    for directory in directories:
        for name, into in ((COOKIE_NAME, found.cookies), (DRAFT_NAME, found.drafts)):
            try:
                into[directory] = codec.decode(Cookie, read_file(disk, directory / name))
            except FileNotFoundError:
                continue
            except RecordError as error:
                if name == COOKIE_NAME:
                    raise CookieMismatchError(f"{directory / name}: {error}") from error
        if any(name in _FILES or name.endswith(_ENDINGS) for name in disk.names(directory)):
            found.occupied.add(directory)
    return found


def write_drafts(disk: Disk, plan: Plan) -> None:
    """Write the drafts of a start's cookie into all directories: step 1. Blocks.

    Raises:
        BookieStorageError: a directory cannot be written.
    """
    for directory, value in _values(plan).items():
        replace_file(disk, directory / DRAFT_NAME, value)


async def commit(disk: Disk, store: MetadataStore | None, plan: Plan, version: int | None) -> None:
    """Put the start's cookie into metadata and give the drafts their names: steps 2 and 3.

    Args:
        version: of the cookie in metadata that the plan was made with; None if there was none.

    Raises:
        CookieMismatchError: another process started the bookie meanwhile.
        MetadataError: the store did not answer; the cookie may be written.
        BookieStorageError: a draft could not be renamed.
    """
    if store is not None:
        path, value = paths.bookie_cookie(plan.cookie.bookie_id), codec.encode(plan.cookie)
        try:
            if version is None:
                await store.create(path, value, parents=True)
            else:
                await store.set(path, value, version)
        except (NodeExistsError, BadVersionError, NoNodeError):  # also our own, after a lost reply
            stored = (await stored_cookie(store, plan.cookie.bookie_id)).cookie
            if stored != plan.cookie:
                raise CookieMismatchError(
                    f"another process started bookie {plan.cookie.bookie_id} meanwhile, or it was retired: two bookies "
                    "of one name cannot serve. Stop one of them"
                ) from None
    await asyncio.to_thread(_name_drafts, disk, list(_values(plan)))


def _values(plan: Plan) -> Mapping[Path, bytes]:
    return {path: codec.encode(plan.cookie_of(path)) for path in dict.fromkeys([*plan.journals, *plan.data])}


def _name_drafts(disk: Disk, directories: Sequence[Path]) -> None:
    for directory in directories:
        disk.rename(directory / DRAFT_NAME, directory / COOKIE_NAME)
        disk.sync_directory(directory)

"""Cookies: they tie a bookie's name to its disks. A bookie on a wrong or empty disk would deny entries that it
acknowledged and forget fences, so it must not start (I6).

The cookie is in every directory and in metadata, and all copies must be equal. A new bookie stamps in three steps, so
that a start after a crash can continue: drafts in all directories, the cookie in metadata, then every draft gets its
final name. No entry is stored before the last step.

    directories        metadata   what it means
    nothing            nothing    a new bookie: stamp
    only drafts        nothing    an unfinished stamp: stamp again
    drafts or cookies  equal      an unfinished stamp, or all is well: finish
    one has nothing    equal      that directory was lost: refuse, or go on with limbo
    some cookie        nothing    the bookie was retired, or these directories are another cluster's: refuse
    any                unequal    other directories, another bookie or cluster: refuse
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import Disk, read_file, replace_file
from heliograph.actors.errors import CookieMismatchError
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError, RecordError
from heliograph.metadata.model import Cookie
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore

COOKIE_NAME = "cookie"
DRAFT_NAME = "cookie.draft"


@dataclass(frozen=True, slots=True)
class Found:
    """The cookies and drafts in the directories."""

    cookies: dict[Path, Cookie]
    drafts: dict[Path, Cookie]


async def expected_cookie(config: BookieConfig, store: MetadataStore | None) -> Cookie:
    """Return the cookie that belongs to this configuration."""
    instance_id = "" if store is None else (await initialise(store)).instance_id
    return Cookie(
        config.bookie_id,
        instance_id,
        tuple(str(path) for path in config.journal_directories),
        tuple(str(path) for path in config.data_directories),
    )


async def stored_cookie(store: MetadataStore | None, bookie_id: str) -> Cookie | None:
    """Return the cookie in metadata, or None."""
    if store is None:
        return None
    try:
        value, _ = await store.get(paths.bookie_cookie(bookie_id))
    except NoNodeError:
        return None
    return codec.decode(Cookie, value)


async def recognise(store: MetadataStore, expected: Cookie) -> None:
    """Check that metadata knows this bookie, so that a missing ledger was deleted and not lost (I14).

    Raises:
        CookieMismatchError: the metadata is another cluster's, or was emptied.
        MetadataError: the store did not answer.
    """
    await store.sync()  # a server that is behind may not have the cookie yet
    stored = await stored_cookie(store, expected.bookie_id)
    if stored != expected:
        raise CookieMismatchError(
            f"{_difference('metadata', stored, expected)}. Metadata was lost or replaced under a running bookie, or "
            "the bookie was retired: it stops, and deletes nothing. Restore the metadata before it starts again"
        )


def read_cookies(disk: Disk, directories: Sequence[Path]) -> Found:
    """Read the cookies and drafts in the directories.

    Raises:
        CookieMismatchError: a cookie is damaged.
    """
    found = Found({}, {})
    for directory in directories:
        for name, into in ((COOKIE_NAME, found.cookies), (DRAFT_NAME, found.drafts)):
            try:
                into[directory] = codec.decode(Cookie, read_file(disk, directory / name))
            except FileNotFoundError:
                continue
            except RecordError as error:
                if name == COOKIE_NAME:
                    raise CookieMismatchError(f"{directory / name}: {error}") from error
    return found


def lost_directories(expected: Cookie, stored: Cookie | None, found: Found, *, has_store: bool) -> list[Path]:
    """Return the directories that held this bookie's data once and are empty now, by the table of this module.

    Raises:
        CookieMismatchError: the directories or the metadata are not this bookie's.
    """
    for directory, cookie in found.cookies.items():
        if cookie != expected:
            raise CookieMismatchError(_difference(str(directory), cookie, expected))
    directories = [Path(name) for name in (*expected.journal_directories, *expected.data_directories)]
    if stored is not None and stored != expected:
        raise CookieMismatchError(_difference("metadata", stored, expected))
    if stored is None and has_store:
        if found.cookies:
            names = ", ".join(str(directory) for directory in found.cookies)
            raise CookieMismatchError(
                f"metadata has no cookie of bookie {expected.bookie_id}, but {names} holds its data: it was retired, "
                "or metadata was lost. Restore the metadata, or give the bookie empty directories"
            )
        return []
    if stored is None and not found.cookies:
        return []
    return [d for d in directories if d not in found.cookies and found.drafts.get(d) != expected]


def refuse_loss(expected: Cookie, lost: Sequence[Path]) -> CookieMismatchError:
    """Return the error for lost directories, with the ways out."""
    names = ", ".join(str(directory) for directory in lost)
    return CookieMismatchError(
        f"bookie {expected.bookie_id} had data in {names}, which is empty now: a disk was lost or swapped. "
        "Three ways out: (1) mount the right disk and start again; (2) start once with accept_storage_loss, so that "
        "it serves what it has, answers 'unknown' for the rest and is repaired from the other bookies; (3) retire the "
        "bookie: let its ledgers be copied to others, delete its cookie, and start a new bookie on empty directories"
    )


async def stamp(disk: Disk, store: MetadataStore | None, cookie: Cookie) -> None:
    """Write the cookie everywhere, in an order that is safe in a crash.

    Raises:
        CookieMismatchError: another bookie of that name stamped metadata meanwhile.
    """
    directories = [Path(name) for name in (*cookie.journal_directories, *cookie.data_directories)]
    value = codec.encode(cookie)
    missing = [directory for directory in directories if not disk.exists(directory / COOKIE_NAME)]
    await asyncio.to_thread(_write_drafts, disk, missing, value)
    if store is not None:
        try:
            await store.create(paths.bookie_cookie(cookie.bookie_id), value, parents=True)
        except NodeExistsError:  # also our own, after a lost reply
            stored = await stored_cookie(store, cookie.bookie_id)
            if stored != cookie:
                raise CookieMismatchError(_difference("metadata", stored, cookie)) from None
    await asyncio.to_thread(_name_drafts, disk, missing)


def _write_drafts(disk: Disk, directories: Sequence[Path], value: bytes) -> None:
    for directory in directories:
        replace_file(disk, directory / DRAFT_NAME, value)


def _name_drafts(disk: Disk, directories: Sequence[Path]) -> None:
    for directory in directories:
        disk.rename(directory / DRAFT_NAME, directory / COOKIE_NAME)
        disk.sync_directory(directory)


def _difference(where: str, found: Cookie | None, expected: Cookie) -> str:
    return (
        f"the cookie in {where} is of another bookie, cluster or set of directories: "
        f"found {found}, expected {expected}. Start the bookie with the name and directories that it had, or give it "
        "empty directories and a new name"
    )

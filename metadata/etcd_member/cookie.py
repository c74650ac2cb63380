"""The identity of a member's disk: which member of which cluster it is, in a file beside etcd's own data.

etcd is started only on a disk with this file. It is written once, on an empty disk, when the cluster is formed or the
member is replaced; so a disk that lost its data never passes for an unused one.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from heliograph.base.errors import ConflictError, ResourceError
from heliograph.base.home import make_private, replace_private

FILE_NAME = "member.json"
DATA = "etcd"  # etcd's own directory, beside the file
VERSION = 1


@dataclass(frozen=True, slots=True)
class MemberCookie:
    """The record of a member.

    Attributes:
        cluster_id: of the cluster.
        name: of the member.
        is_joining: the member was added to a cluster that had formed without this disk.
        has_served: whether etcd has served from this disk, so that its data has to be there.
    """

    cluster_id: str
    name: str
    is_joining: bool
    has_served: bool = False
    version: int = VERSION


def read_cookie(directory: Path) -> MemberCookie | None:
    """Return the cookie of a directory; None if it has none.

    Raises:
        ResourceError: the file cannot be read, or another version wrote it.
    """
    path = directory / FILE_NAME
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        if fields.get("version") != VERSION:
            raise ResourceError(f"{path} was written by another version")
        return MemberCookie(**fields)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ResourceError(f"{path} cannot be read ({error}): this disk's member has to be replaced") from error


def check_cookie(directory: Path, cluster_id: str, name: str) -> MemberCookie | None:
    """Check that the cookie of a directory is this member's, and return it; None for an empty directory.

    Raises:
        ConflictError: it is another member's, there is data without a cookie, or the data of a member that served is
            gone; nothing was changed.
        ResourceError: it cannot be read.
    """
    cookie = read_cookie(directory)
    if cookie is None:
        if (directory / DATA).exists():
            raise ConflictError(f"{directory} has etcd's data, and no {FILE_NAME} says whose: move it away")
        return None
    if cookie.has_served and not (directory / DATA).exists():
        raise ConflictError(f"{directory / DATA} is gone: {replacement_of(name)}")
    if (cookie.cluster_id, cookie.name) != (cluster_id, name):
        raise ConflictError(
            f"{directory} is the disk of {cookie.name} in cluster {cookie.cluster_id}, and not of {name} in cluster "
            f"{cluster_id}: mount the right disk, or move this one's data away"
        )
    return cookie


def replacement_of(name: str) -> str:
    return f"`helio metadata replace {name} --empty-disk` has it begin again as a new member, from the others' data"


def note_served(directory: Path, cookie: MemberCookie) -> None:
    """Record that etcd serves from this disk, durably.

    Raises:
        OSError: it cannot be written.
    """
    if not cookie.has_served:
        _write(directory, replace(cookie, has_served=True))


def write_cookie(directory: Path, cookie: MemberCookie) -> None:
    """Make an empty directory a member's, durably.

    Raises:
        ConflictError: the directory has a cookie or data.
        OSError: it cannot be written.
    """
    if read_cookie(directory) is not None or (directory / DATA).exists():
        raise ConflictError(f"{directory} is not empty")
    make_private(directory)
    _write(directory, cookie)


def erase(directory: Path) -> None:
    """Delete a member's data, then its cookie: an interrupted deletion leaves a disk that still has a cookie.

    Raises:
        OSError: it cannot be deleted.
    """
    if (directory / DATA).exists():
        shutil.rmtree(directory / DATA)
    (directory / FILE_NAME).unlink(missing_ok=True)


def _write(directory: Path, cookie: MemberCookie) -> None:
    replace_private(directory / FILE_NAME, (json.dumps(asdict(cookie), indent=2) + "\n").encode())

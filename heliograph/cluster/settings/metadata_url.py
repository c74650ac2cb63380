"""Which metadata store a cluster has: the address of one of the user's own, or the kind that the cluster runs."""

from __future__ import annotations

from typing import Any

from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.etcd_member.membership import COUNTS

SCHEMES = ("embedded", "etcd", "etcds", "zk")


def check_metadata(config: Any) -> None:
    """Check that a ``ClusterConfig`` names one metadata store.

    Raises:
        InvalidConfigError: it names two, an address that is none, or a number of members without a clear majority.
    """
    _check_url(config.metadata_url)
    if config.metadata_kind == "etcd" and config.metadata_url is not None:
        raise InvalidConfigError(
            "metadata_kind names a store that the cluster runs itself, and metadata_url one that exists: give one",
            field="metadata_kind,metadata_url",
        )
    if config.metadata_members not in (None, *COUNTS):
        raise InvalidConfigError(
            f"metadata_members is {config.metadata_members}: an even number survives no more failures than one less",
            field="metadata_members",
            limit=", ".join(map(str, COUNTS)),
        )


def _check_url(url: str | None) -> None:
    """Check ``metadata_url``; None is no store of the user's own.

    Raises:
        InvalidConfigError: its scheme is unknown, or it holds a password.
    """
    if url is None:
        return
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise InvalidConfigError(
            f"metadata_url {url!r} does not start with one of " + ", ".join(f"{known}://" for known in SCHEMES),
            field="metadata_url",
        )
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at and ":" in user:
        raise InvalidConfigError(
            "metadata_url holds a password, and would be shown: leave it out and give metadata_password",
            field="metadata_url",
        )

"""The address of a metadata store of the user's own."""

from __future__ import annotations

from heliograph.base.errors import InvalidConfigError

SCHEMES = ("embedded", "etcd", "etcds", "zk")


def check_metadata_url(url: str | None) -> None:
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

"""The installed release of Ray: whether Heliograph runs on it, and whether its ports can be guarded."""

from __future__ import annotations

from collections.abc import Callable

from heliograph.base.errors import UnsupportedError
from heliograph.base.peer import is_loopback
from heliograph.base.version import extra_required
from heliograph.client import ray_release
from heliograph.cluster.config import ClusterConfig


def check_ray(progress: Callable[[str], None]) -> None:
    """Check the installed release of Ray; report one that is newer than the tested releases.

    Raises:
        ResourceError: Ray is not installed.
        UnsupportedError: it is too old.
    """
    with extra_required():
        version = ray_release.ray_version()
    ray_release.require_supported(version)
    if told := ray_release.untested(version):
        progress(told)


def guarded(config: ClusterConfig) -> ClusterConfig:
    """Return the configuration with which no stranger reaches a port of Ray; a Ray without tokens stays on loopback.

    Raises:
        UnsupportedError: other machines are to reach a Ray that cannot ask for a token.
    """
    version = ray_release.ray_version()
    if ray_release.knows_tokens(version) or config.insecure:
        return config
    if is_loopback(config.host) and config.node_address is None:
        return config.model_copy(update={"ray_on_loopback": True})
    raise UnsupportedError(
        f"Ray {version} runs the code of everyone who reaches its ports: install ray>={ray_release.TOKENS_SINCE}, "
        "which asks for a token, or give --insecure if everyone who reaches this machine may do everything",
        field="ray",
        limit=f">={ray_release.TOKENS_SINCE}, unless insecure is set",
    )

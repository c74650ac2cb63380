"""The settings of copies and of secrets that limit each other."""

from __future__ import annotations

from typing import Any

from heliograph.base.errors import InvalidConfigError, InvalidQuorumError
from heliograph.base.guard.handshake import SECRET_CHARACTERS_MIN


def check_quorum(config: Any) -> None:
    """Check that a ``ClusterConfig`` asks for no more copies than there are bookies.

    Raises:
        InvalidQuorumError: it does; names the settings.
    """
    if not config.ensemble_size >= config.write_quorum >= config.ack_quorum >= 1:
        raise InvalidQuorumError(
            f"ensemble size {config.ensemble_size}, write quorum {config.write_quorum}, ack quorum {config.ack_quorum} "
            "must satisfy ensemble >= write quorum >= ack quorum >= 1",
            field="ensemble_size,write_quorum,ack_quorum",
            limit="E >= Qw >= Qa >= 1",
        )
    if config.bookies < config.ensemble_size:
        raise InvalidQuorumError(
            f"{config.bookies} bookies cannot hold an ensemble of {config.ensemble_size}: start at least "
            f"{config.ensemble_size} bookies, or lower ensemble_size, write_quorum and ack_quorum",
            field="bookies",
            limit=f"bookies >= ensemble_size ({config.ensemble_size})",
        )


def check_secrets(config: Any) -> None:
    """Check the length of a ``ClusterConfig``'s secrets, and that the previous one stands beside the present one.

    Raises:
        InvalidConfigError: a secret is too short, has several lines, or is missing; names the setting.
    """
    for name in ("cluster_secret", "previous_cluster_secret"):
        given = getattr(config, name)
        if given is not None and (len(text := given.get_secret_value()) < SECRET_CHARACTERS_MIN or "\n" in text):
            raise InvalidConfigError(
                f"{name} is shorter than {SECRET_CHARACTERS_MIN} characters, or has several lines",
                field=name,
                limit=f"at least {SECRET_CHARACTERS_MIN} characters, in one line",
            )
    if config.previous_cluster_secret is not None and config.cluster_secret is None:
        raise InvalidConfigError(
            "a previous secret stays valid beside the present one: give cluster_secret, too", field="cluster_secret"
        )

"""Which cluster is meant, and where this machine keeps its state: the two settings that every command needs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from heliograph.base.home import DEFAULT_NAMESPACE, NAMESPACE_PATTERN, default_state_root
from heliograph.base.section import config_error

PREFIX = "HELIOGRAPH_"  # of environment variables


class ClusterLocation(BaseSettings):
    """The name and the state directory of a cluster, from arguments or the environment.

    Raises:
        InvalidConfigError: a setting is unknown or out of range; names it and the limit.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    namespace: str = Field(
        default=DEFAULT_NAMESPACE,
        pattern=NAMESPACE_PATTERN,
        description="Ray namespace of the actors",
    )
    home: Path | None = Field(
        default=None, description="state of the cluster on this machine; None: `<state root>/<namespace>`"
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise config_error(error, self.known_settings()) from None

    @classmethod
    def known_settings(cls) -> Collection[str]:
        return cls.model_fields

    @field_validator("home")
    @classmethod
    def _absolute_home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @property
    def own_location(self) -> dict[str, Any]:
        return {"namespace": self.namespace, "home": self.home}

    @property
    def home_directory(self) -> Path:
        return self.home or default_state_root() / self.namespace

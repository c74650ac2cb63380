"""Which cluster is meant, and where this machine keeps its state: the two settings that every command needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from heliograph.base.home import DEFAULT_NAMESPACE, NAMESPACE_PATTERN, default_state_root
from heliograph.base.section import Declared, config_error
from heliograph.base.settings import Setting

PREFIX = "HELIOGRAPH_"  # of environment variables
FILE_NAME = "cluster.toml"  # of the settings, below the home directory


def own(default: Any, meaning: str, *, least: float | None = None, most: float | None = None, **more: Any) -> Any:
    """Declare a setting of the cluster, as ``setting`` does for the parts.

    Args:
        default: a callable is called for each configuration.
        more: further arguments of pydantic's ``Field``.
    """
    kind = "default_factory" if callable(default) else "default"
    return Field(**{kind: default}, description=meaning, ge=least, le=most, **more)


def _declared(name: str, item: FieldInfo) -> Declared:
    limits = {
        ours: value
        for limit in item.metadata
        for ours, theirs in (("least", "ge"), ("most", "le"), ("pattern", "pattern"))
        if (value := getattr(limit, theirs, None)) is not None
    }
    setting = Setting(item.description or "", **limits)
    default = item.get_default(call_default_factory=True, validated_data={})
    return Declared(name, item.annotation, default, setting, is_computed=item.default_factory is not None)


class ClusterLocation(BaseSettings):
    """The name and the state directory of a cluster, from arguments or the environment.

    Raises:
        InvalidConfigError: a setting is unknown or out of range; names it and the limit.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    namespace: str = own(DEFAULT_NAMESPACE, "Ray namespace of the actors", pattern=NAMESPACE_PATTERN)
    home: Path | None = own(None, "state of the cluster on this machine; None: `<state root>/<namespace>`")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise config_error(error, self.known_settings()) from None

    @classmethod
    def declared(cls) -> Iterator[Declared]:
        """Yield all settings, first the cluster's own."""
        return (_declared(name, item) for name, item in cls.model_fields.items() if name != "sections")

    @classmethod
    def known_settings(cls) -> Collection[str]:
        """Return the full names of all settings, and of the tables of the sections."""
        return [setting.name for setting in cls.declared()]

    @field_validator("home")
    @classmethod
    def _absolute_home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @property
    def own_location(self) -> dict[str, Any]:
        """The arguments that name the same cluster."""
        return {"namespace": self.namespace, "home": self.home}

    @property
    def home_directory(self) -> Path:
        return self.home or default_state_root() / self.namespace

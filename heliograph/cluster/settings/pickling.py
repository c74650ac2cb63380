"""Pickles of configurations by names: an actor that starts again may have another release's code (``Portable``)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, TypeVar

from pydantic import BaseModel

from heliograph.base.settings import portable, restored
from heliograph.cluster.settings.sections import SECTIONS

M = TypeVar("M", bound=BaseModel)


def reduced(model: BaseModel) -> tuple[Any, ...]:
    """Return the value for ``__reduce__`` of a configuration."""
    return remade, (type(model), {name: portable(value) for name, value in model}, model.model_fields_set)


def remade(kind: type[M], values: Mapping[str, Any], given: Set[str]) -> M:
    """Return the configuration; settings that no longer exist are left out, and new settings have their defaults."""
    made = {name: restored(value) for name, value in values.items() if name in kind.model_fields}
    made["sections"] = {name: section.known(made["sections"].get(name, {})) for name, section in SECTIONS.items()}
    return kind.model_construct({name for name in given if name in kind.model_fields}, **made)

"""Pickles of configurations by names: an actor that starts again may have another release's code (``Portable``)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, TypeVar

from pydantic import BaseModel

from heliograph.base.settings import portable, restored

M = TypeVar("M", bound=BaseModel)


def reduced(model: BaseModel) -> tuple[Any, ...]:
    """Return what ``__reduce__`` of a configuration is to return.

    The classes of its sections are made at run time. As they are, each pickle would hold their 180 KB.
    """
    values = {
        name: value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else portable(value)
        for name, value in model
    }
    return remade, (type(model), values, model.model_fields_set)


def remade(kind: type[M], values: Mapping[str, Any], given: Set[str]) -> M:
    """Return the configuration; settings that are no more are left out, and new ones have their defaults."""
    made = {}
    for name, item in kind.model_fields.items():
        if name in values:
            table: Any = item.annotation
            made[name] = table(**_known(table, values[name])) if _is_model(table) else restored(values[name])
    return kind.model_construct({name for name in given if name in kind.model_fields}, **made)


def _known(model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {name: item.annotation for name, item in model.model_fields.items()}
    return {
        name: _known(kinds[name], value) if _is_model(kinds[name]) else value
        for name, value in values.items()
        if name in kinds
    }


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)

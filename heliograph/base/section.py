"""Sections of a configuration: what a user writes, typed by the dataclass that the section configures.

The models are derived from the dataclasses, so that no setting is declared twice. They check names and types; the
dataclasses check the limits when a section is built.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from dataclasses import Field as DataclassField
from typing import Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, create_model, field_validator
from pydantic.fields import FieldInfo

from heliograph.base.errors import InvalidConfigError
from heliograph.base.settings import default_of, setting_of

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "pattern": "pattern"}  # pydantic's names and our signs

_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "min_length": "characters: at least", "pattern": "pattern"}


class Section(BaseModel):
    """The settings of one dataclass; only those that were given differ from the dataclass's defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    part: ClassVar[type[Any]] = object  # the dataclass

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None, "the validator of a field"
        kind = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and kind in (int, float):
            raise ValueError("a number is expected")
        if isinstance(value, str) and getattr(kind, "__origin__", None) is tuple:
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value


def section_of(part: type[Any], without: Collection[str] = ()) -> type[Section]:
    """Derive the section of a dataclass.

    Args:
        without: fields that no user sets; ``writer.entry_bytes_max`` is a field of the nested dataclass ``writer``.
    """
    hints = get_type_hints(part)
    made: dict[str, Any] = {}
    for item in fields(part):
        if item.name in without:
            continue
        default = default_of(item)
        if is_dataclass(default):
            prefix = f"{item.name}."
            inner = section_of(
                type(default), [name.removeprefix(prefix) for name in without if name.startswith(prefix)]
            )
            made[item.name] = (inner, Field(default_factory=inner, description=setting_of(item).meaning))
        else:
            if default is MISSING:  # a setting that its dataclass requires is empty until the cluster completes it
                default = ()
            made[item.name] = (hints[item.name], Field(default=default, description=setting_of(item).meaning))
    model: type[Section] = create_model(f"{part.__name__}Section", __base__=Section, **made)
    model.part = part
    return model


def settings_below(section: type[Section], prefix: str) -> Iterator[tuple[str, DataclassField[Any]]]:
    """Yield every setting of a section and of the sections within it: its full name and the dataclass's field."""
    declared = {item.name: item for item in fields(section.part)}
    for name, item in section.model_fields.items():
        kind = item.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from settings_below(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", declared[name]


def limits_of(item: FieldInfo) -> str:
    """Return the limits of a setting that pydantic checks as a phrase such as ``at least 1, at most 999``."""
    bounds = ((bound, getattr(limit, bound, None)) for limit in item.metadata for bound in _LIMITS)
    return ", ".join(
        f"{_LIMITS[bound]} " + (f"`{value}`" if isinstance(value, str) else str(value))
        for bound, value in bounds
        if value is not None
    )


def build(section: Section, prefix: str, decided: Mapping[str, Any]) -> Any:
    """Make the dataclass that a section configures.

    Args:
        prefix: of the settings' full names, such as ``broker.``.
        decided: values of fields that the section does not have; a mapping for a nested dataclass.

    Raises:
        InvalidConfigError: a value is out of range or contradicts another; names the setting in full and the limit.
    """
    values: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            values[name] = build(value, f"{prefix}{name}.", decided.get(name, {}))
        elif name in section.model_fields_set:
            values[name] = value
    values |= {name: value for name, value in decided.items() if name not in values}
    try:
        return section.part(**values)
    except InvalidConfigError as error:
        raise _in_full(error, prefix, type(section).model_fields) from None


def from_environment(environment: Mapping[str, str], prefix: str, sections: Collection[str]) -> dict[str, Any]:
    """Return the settings of sections that an environment has, as nested tables.

    ``HELIOGRAPH_BROKER__BALANCE__SHED_GAP`` is ``shed_gap`` of the section ``broker.balance``. A variable whose name
    does not start with the prefix, a section and two underscores belongs to another program.
    """
    found: dict[str, Any] = {}
    for variable, value in environment.items():
        section, *path = variable.lower().removeprefix(prefix.lower()).split("__")
        if not variable.lower().startswith(prefix.lower()) or section not in sections or not path:
            continue
        table = found.setdefault(section, {})
        for name in path[:-1]:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise InvalidConfigError(f"{variable} is below a setting that has a value", field=variable)
        table[path[-1]] = value
    return found


def from_mapping(part: type[Any], values: Mapping[str, Any], prefix: str = "") -> Any:
    """Make a dataclass from plain values, converting them to the types of its fields.

    Args:
        prefix: of the settings' full names in errors, such as ``ledger.``.

    Raises:
        InvalidConfigError: a name is unknown, or a value has the wrong type or is out of range; names it.
    """
    kind = section_of(part)
    try:
        section = kind(**values)
    except ValidationError as error:
        raise config_error(error, [name for name, _ in settings_below(kind, prefix)], prefix) from None
    return build(section, prefix, {})


def config_error(error: ValidationError, known: Collection[str], prefix: str = "") -> InvalidConfigError:
    """Return the first problem of a failed validation as one sentence that names the setting in full.

    Args:
        known: the full names of all settings, to suggest the nearest to an unknown one.
        prefix: what the names in ``error`` lack to be full.
    """
    first = error.errors(include_url=False)[0]
    field = prefix + ".".join(str(part) for part in first["loc"]).removeprefix("sections.")
    if first["type"] == "extra_forbidden":
        return unknown_setting(field, known)
    limits = [f"{_BOUNDS[name]} {value}" for name, value in first.get("ctx", {}).items() if name in _BOUNDS]
    return InvalidConfigError(
        f"{field} = {first['input']!r}: {first['msg'].removeprefix('Value error, ')}",
        field=field,
        limit=", ".join(limits) or None,
    )


def unknown_setting(name: str, known: Collection[str]) -> InvalidConfigError:
    """Return the error for a name that is no setting, with the nearest name that is one."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    hint = f"; the nearest name is {near[0]}" if near else ""
    return InvalidConfigError(f"there is no setting named {name}{hint}", field=name)


def _in_full(error: InvalidConfigError, prefix: str, names: Collection[str]) -> InvalidConfigError:
    message, limit = str(error), error.limit
    for name in names:
        message = re.sub(rf"(?<![\w.]){name}(?!\w)", prefix + name, message)
    given = (error.field or "").split(",")
    field = ",".join(prefix + name if name in names else name for name in given)
    if prefix and any(name in names for name in given) and prefix not in message:
        message = f"{field}: {message}"
    return InvalidConfigError(message, field=field or None, limit=limit)

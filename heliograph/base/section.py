"""Sections of a configuration as users write them, read by the declarations of the dataclasses they configure.

A section is a table of the values that were given. Its names and types are checked when it is read; the dataclasses
check the limits when they are built.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from heliograph.base.errors import InvalidConfigError
from heliograph.base.settings import Setting, default_of, setting_of, unit_of

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "pattern": "pattern"}  # pydantic's names and our signs


class SettingScope(enum.Enum):
    """The choice of the fields of a part's dataclass that are settings in a section."""

    ALL = enum.auto()
    CLUSTER = enum.auto()  # those that the cluster does not decide
    NODE = enum.auto()  # these, and those that a node may decide for its own parts

    def has(self, declared: Setting) -> bool:
        return self is SettingScope.ALL or not declared.decided or (self is SettingScope.NODE and declared.is_of_nodes)


@dataclass(frozen=True, slots=True)
class Declared:
    """One setting by its full name. ``is_computed``: the default is what suits the machine."""

    name: str
    kind: Any
    default: Any
    setting: Setting
    is_computed: bool = False

    @property
    def unit(self) -> str:
        """The unit of the value; empty for counts and texts."""
        return unit_of(self.name)

    @property
    def limit(self) -> str:
        """The limits of the value with their unit, as a phrase; empty when there are none."""
        return self.setting.limit(self.unit)

    def variable(self, prefix: str) -> str:
        """Return the variable of the environment that gives the setting."""
        return prefix + self.name.replace(".", "__").upper()


@dataclass(frozen=True, slots=True)
class Section:
    """The settings of one part, and of the dataclasses within its own.

    Args:
        part: the dataclass.
        prefix: of the settings' full names, such as ``broker.``.
        scope: which fields are settings.
    """

    part: Any
    prefix: str = ""
    scope: SettingScope = SettingScope.ALL

    def settings(self) -> Iterator[Declared]:
        """Yield every setting of the section and of the sections within it."""
        kinds = _kinds(self.part)
        for item in fields(self.part):
            if not self.scope.has(setting_of(item)):
                continue
            if (inner := self._within(item.name)) is not None:
                yield from inner.settings()
            else:
                default = default_of(item)  # the cluster completes what the dataclass requires
                default = () if default is MISSING else default
                yield Declared(self.prefix + item.name, kinds[item.name], default, setting_of(item))

    def decided(self) -> dict[str, str]:
        """Return the settings that the cluster decides, such as ``writer.entry_bytes_max``, each with the reason."""
        found = {}
        for item in fields(self.part):
            if by := setting_of(item).decided_by(item.name):
                found[item.name] = by
            elif (inner := self._within(item.name)) is not None:
                found |= {f"{item.name}.{name}": by for name, by in inner.decided().items()}
        return found

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a table of settings with the values converted to their types.

        Raises:
            InvalidConfigError: a name is unknown or decided by the cluster, or a value has the wrong type; names it.
        """
        made: dict[str, Any] = {}
        for name, value in values.items():
            full, inner = self.prefix + name, self._within(name)
            if name not in self._names():
                if self.scope is SettingScope.CLUSTER and (by := self.decided().get(name)):
                    raise InvalidConfigError(f"{full} cannot be set: it is decided by {by}", field=full)
                raise unknown_setting(full, [declared.name for declared in self.settings()])
            if inner is None:
                made[name] = value_of(_kinds(self.part)[name], value, full)
            elif isinstance(value, Mapping):
                made[name] = inner.read(value)
            else:
                raise InvalidConfigError(f"{full} = {value!r}: a table is expected", field=full)
        return made

    def known(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a table that was read, by this release or another, without the settings that are no more."""
        within = {name: self._within(name) for name in self._names() & values.keys()}
        return {name: inner.known(values[name]) if inner else values[name] for name, inner in within.items()}

    def build(self, values: Mapping[str, Any], decided: Mapping[str, Any]) -> Any:
        """Make the dataclass of a table that was read.

        Args:
            decided: values of the fields that the table does not have; a mapping for a dataclass within.

        Raises:
            InvalidConfigError: a value is out of range or contradicts another; names the setting and the limit.
        """
        made = {**decided, **values}
        for name in made:
            inner = self._within(name)
            if inner is not None and isinstance(made[name], Mapping):
                made[name] = inner.build(values.get(name, {}), decided.get(name, {}))
        try:
            return self.part(**made)
        except InvalidConfigError as error:
            raise self._in_full(error) from None

    def _names(self) -> set[str]:
        return {item.name for item in fields(self.part) if self.scope.has(setting_of(item))}

    def _within(self, name: str) -> Section | None:
        """Return the section of a field that is a dataclass; None: it is a value."""
        kind = _kinds(self.part).get(name)
        return Section(kind, f"{self.prefix}{name}.", self.scope) if is_dataclass(kind) else None

    def _in_full(self, error: InvalidConfigError) -> InvalidConfigError:
        message, names, prefix = str(error), self._names(), self.prefix
        for name in names:
            message = re.sub(rf"(?<![\w.]){name}(?!\w)", prefix + name, message)
        given = (error.field or "").split(",")
        field = ",".join(prefix + name if name in names else name for name in given)
        if prefix and names.intersection(given) and prefix not in message:
            message = f"{field}: {message}"
        return InvalidConfigError(message, field=field or None, limit=error.limit)


def value_of(kind: Any, value: Any, name: str) -> Any:
    """Return the value of one setting, converted to its type.

    Raises:
        InvalidConfigError: it cannot be; names the setting in full.
    """
    if isinstance(value, bool) and kind in (int, float):
        raise InvalidConfigError(f"{name} = {value!r}: a number is expected", field=name)
    if isinstance(value, str) and getattr(kind, "__origin__", None) is tuple:
        value = tuple(part.strip() for part in value.split(",") if part.strip())
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise config_error(error, (), name) from None


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
    section = Section(part, prefix)
    return section.build(section.read(values), {})


def config_error(error: ValidationError, known: Collection[str], name: str = "") -> InvalidConfigError:
    """Return the first problem of a failed validation as one sentence that names the setting in full.

    Args:
        known: the full names of all settings, to suggest the nearest to an unknown one.
        name: of the setting that was validated, if it was one.
    """
    first = error.errors(include_url=False)[0]
    field = ".".join(filter(None, (name, *map(str, first["loc"]))))
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


@cache
def _kinds(part: Any) -> dict[str, Any]:
    return get_type_hints(part)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)

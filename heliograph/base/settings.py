"""Declarations of settings: default, meaning, unit and limits, each written once. Pure.

The configuration of a part is a frozen dataclass. ``setting`` declares a field, and ``__post_init__`` calls
``check_limits``. The cluster's sections and the reference of all settings are derived from the declarations. The end of
a setting's name is its unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from heliograph.base.errors import InvalidConfigError

T = TypeVar("T")

_KEY = "heliograph.setting"
_UNITS = (
    (re.compile(r"bytes_per_second$"), "bytes/s"),
    (re.compile(r"messages_per_second$"), "messages/s"),
    (re.compile(r"(^|_)bytes(_max|_min)?$"), "bytes"),
    (re.compile(r"_ms(_max|_min)?$"), "ms"),
    (re.compile(r"_seconds(_max|_min)?$"), "s"),
    (re.compile(r"_share$"), "share, 0 to 1"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field of a configuration means, and the values that it admits.

    Args:
        meaning: a phrase for the reference.
        least: lowest value.
        above: greatest value that is too low.
        most: highest value.
        is_live: whether it can change while the part runs (docs/operations/tasks.md).
    """

    meaning: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    is_live: bool = False

    def admits(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def limit(self, unit: str = "") -> str:
        """Return the limits as a phrase such as ``at least 1 ms``; empty when there are none."""
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most))
        text = ", ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
        return f"{text} {unit}" if text and unit in ("bytes", "ms", "s") else text


def described(
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    is_live: bool = False,
) -> Mapping[str, Setting]:
    """Return the metadata of a dataclass field that is a setting, for fields that ``setting`` cannot make."""
    return {_KEY: Setting(meaning, least, above, most, is_live)}


def setting(
    default: T,
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    is_live: bool = False,
) -> T:
    """Declare a field of a configuration with its default, its meaning and its limits."""
    metadata = described(meaning, least=least, above=above, most=most, is_live=is_live)
    made: T = field(default=default, metadata=metadata)
    return made


def setting_of(item: Field[Any]) -> Setting:
    """Return the declaration of a dataclass field; an empty one if the field is no setting."""
    found: Setting = item.metadata.get(_KEY, Setting(""))
    return found


def default_of(item: Field[Any]) -> Any:
    """Return the default value of a dataclass field, or ``MISSING``."""
    return item.default_factory() if item.default_factory is not MISSING else item.default


def unit_of(name: str) -> str:
    """Return the unit that the end of a setting's name stands for; empty for counts and for what is no number."""
    return next((unit for pattern, unit in _UNITS if pattern.search(name)), "")


def check_limits(config: Any) -> None:
    """Check every number of a configuration against the limits of its field.

    Raises:
        InvalidConfigError: a value is out of range; names the field and the limit.
    """
    for item in fields(config):
        value, declared = getattr(config, item.name), setting_of(item)
        if isinstance(value, int | float) and not declared.admits(value):
            limit = declared.limit(unit_of(item.name))
            raise InvalidConfigError(f"{item.name} is {value}, it must be {limit}", field=item.name, limit=limit)


class Portable:
    """A dataclass as it is pickled: by the names of its fields.

    Ray keeps what an actor was created with, and starts it again from that, also after another release was installed.
    The usual pickles of dataclasses with slots go by the order of the fields, which that release may have changed.
    """

    def __init__(self, kind: type[Any], values: dict[str, Any]) -> None:
        self.kind = kind
        self.values = values


def portable(value: Any) -> Any:
    """Return a value with ``Portable`` in place of each dataclass in it, also within tuples, lists and dicts."""
    if is_dataclass(value) and not isinstance(value, type):
        given = {item.name: portable(getattr(value, item.name)) for item in fields(value) if item.init}
        return Portable(type(value), given)
    if type(value) in (tuple, list):
        return type(value)(map(portable, value))
    if type(value) is dict:
        return {key: portable(each) for key, each in value.items()}
    return value


def restored(value: Any) -> Any:
    """Return what ``portable`` was given. Fields that are no more are left out, new ones have defaults."""
    if isinstance(value, Portable):
        known = {item.name for item in fields(value.kind) if item.init}
        return value.kind(**{name: restored(each) for name, each in value.values.items() if name in known})
    if type(value) in (tuple, list):
        return type(value)(map(restored, value))
    if type(value) is dict:
        return {key: restored(each) for key, each in value.items()}
    return value

"""Declarations of settings: default, meaning, unit, limits and who decides, each written once. Pure.

The configuration of a part is a frozen dataclass. ``setting`` declares a field, and ``__post_init__`` calls
``check_limits``. The cluster's sections, the tables of nodes and the reference of all settings read the declarations.
The end of a setting's name is its unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, TypedDict, TypeVar

from typing_extensions import Unpack

from heliograph.base.errors import InvalidConfigError

T = TypeVar("T")
K = TypeVar("K", bound=type[Any])

SAME = "="  # the setting of the cluster that has the same name

_KEY = "heliograph.setting"
_NAMES = re.compile(r"\w+(, \w+)* and \w+")
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
    """Meaning of a configuration's field, the values that it admits, and who decides it.

    Args:
        meaning: a phrase for the reference.
        least: lowest value.
        above: greatest value that is too low.
        most: highest value.
        choices: all values of a text; empty: any.
        pattern: regular expression of a text, for the reference; empty: any.
        is_live: whether it can change while the part runs (docs/operations/tasks.md).
        decided: what decides it in a cluster, in place of the section of the part: ``SAME``, settings of the cluster
            such as ``brokers`` or ``tls_key_file and tls_ca_file``, or another phrase; empty: the section.
        is_of_nodes: whether the table of a node may give it although the cluster decides it.
        is_secret: whether its value is shown to nobody.
    """

    meaning: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    is_live: bool = False
    decided: str = ""
    is_of_nodes: bool = False
    is_secret: bool = False

    def decided_by(self, name: str) -> str:
        """Return what decides the field of this name in a cluster, as a phrase; empty: the section of the part."""
        by = name if self.decided == SAME else self.decided
        if by.isidentifier():
            return f"the cluster setting {by}"
        return f"the cluster settings {by}" if _NAMES.fullmatch(by) else by

    def admits(self, value: Any) -> bool:
        """Return whether a value is one of the choices, or a number within the limits."""
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return not isinstance(value, int | float) or (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def limit(self, unit: str = "") -> str:
        """Return the limits of a number as a phrase such as ``at least 1 ms``; empty when there are none."""
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most))
        text = ", ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
        if self.pattern:
            return f"pattern `{self.pattern}`"
        return f"{text} {unit}" if text and unit in ("bytes", "ms", "s") else text


class Marks(TypedDict, total=False):
    """The arguments of ``Setting`` beside the meaning."""

    least: float
    above: float
    most: float
    choices: tuple[str, ...]
    is_live: bool
    decided: str
    is_of_nodes: bool


def described(meaning: str, **marks: Unpack[Marks]) -> Mapping[str, Setting]:
    """Return the metadata of a dataclass field that is a setting, for fields that ``setting`` cannot make."""
    return {_KEY: Setting(meaning, **marks)}


def setting(default: T, meaning: str, *, is_secret: bool = False, **marks: Unpack[Marks]) -> T:
    """Declare a field of a configuration with its default and its meaning.

    Args:
        is_secret: whether the ``repr`` of the configuration and ``helio config`` leave the value out.
        marks: what ``Setting`` has beside the meaning.
    """
    metadata = {_KEY: Setting(meaning, is_secret=is_secret, **marks)}
    made: T = field(default=default, repr=not is_secret, metadata=metadata)
    return made


def port_setting(default: T, meaning: str, *, decided: str) -> T:
    """Declare the port of a listener, which a node may give."""
    return setting(default, meaning, least=0, most=65_535, decided=decided, is_of_nodes=True)


def setting_of(item: Field[Any]) -> Setting:
    """Return the declaration of a dataclass field; an empty one if the field is no setting."""
    found: Setting = item.metadata.get(_KEY, Setting(""))
    return found


def default_of(item: Field[Any]) -> Any:
    """Return the default value of a dataclass field, or ``MISSING``."""
    return item.default_factory() if item.default_factory is not MISSING else item.default


def unit_of(name: str) -> str:
    """Return the unit that the end of a setting's name stands for; empty for counts and texts."""
    return next((unit for pattern, unit in _UNITS if pattern.search(name)), "")


def check_limits(config: Any) -> None:
    """Check every field of a configuration against its limits or choices.

    Raises:
        InvalidConfigError: a value is out of range; names the field and the limit.
    """
    for item in fields(config):
        value, declared = getattr(config, item.name), setting_of(item)
        if declared.admits(value):
            continue
        name, allowed = item.name, ", ".join(declared.choices)
        if allowed:
            message = f"{name} is {value!r}, it must be one of {allowed}"
            raise InvalidConfigError(message, field=name, limit=allowed)
        limit = declared.limit(unit_of(name))
        raise InvalidConfigError(f"{name} is {value}, it must be {limit}", field=name, limit=limit)


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
    """Return the argument of ``portable``. Fields that no longer exist are left out, new fields have defaults."""
    if isinstance(value, Portable):
        known = {item.name for item in fields(value.kind) if item.init}
        return value.kind(**{name: restored(each) for name, each in value.values.items() if name in known})
    if type(value) in (tuple, list):
        return type(value)(map(restored, value))
    if type(value) is dict:
        return {key: restored(each) for key, each in value.items()}
    return value


def fields_added(*names: str) -> Callable[[K], K]:
    """Return a decorator of a dataclass that has pickles of release 0.1.0 loaded, which does not know ``portable``.

    They have the values of the fields in order.

    Args:
        names: of the fields that 0.1.0 does not have, which get their defaults; all others are in its order.
    """

    def decorated(kind: K) -> K:
        def set_state(self: Any, state: Sequence[Any] | Mapping[str, Any]) -> None:
            values = {item.name: default_of(item) for item in fields(kind) if item.name in names}
            if isinstance(state, Mapping):
                values |= state
            else:
                every = [item.name for item in fields(kind)]
                given = every if len(state) == len(every) else [name for name in every if name not in names]
                values |= zip(given, state, strict=True)
            for name, value in values.items():
                object.__setattr__(self, name, value)

        kind.__setstate__ = set_state
        return kind

    return decorated

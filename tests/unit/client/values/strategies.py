"""Generated classes and their values: of types that always come back, and of types whose values may be refused."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pydantic
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
MOMENTS = st.datetimes(
    min_value=datetime.datetime(1600, 1, 1),
    max_value=datetime.datetime(2200, 1, 1),
    timezones=st.sampled_from([datetime.UTC, datetime.timezone(datetime.timedelta(hours=2))]),
)
FIELDS_MAX = 4
_numbers = count()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 7


@dataclass(frozen=True)
class Kind:
    """A type of a field and values of it. ``can_be_key``: as a member of a set or a key of a mapping."""

    type: Any
    values: st.SearchStrategy[Any]
    can_be_key: bool = True


PLAIN: tuple[Kind, ...] = (
    Kind(bool, st.booleans()),
    Kind(int, LONGS),
    Kind(float, FINITE, can_be_key=False),
    Kind(str, st.text(max_size=20)),
    Kind(bytes, st.text(max_size=20).map(str.encode), can_be_key=False),
    Kind(datetime.datetime, MOMENTS),
    Kind(datetime.date, st.dates()),
    Kind(datetime.time, st.times(), can_be_key=False),
    Kind(datetime.timedelta, st.timedeltas(datetime.timedelta(-9999), datetime.timedelta(9999)), can_be_key=False),
    Kind(Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9)),
    Kind(uuid.UUID, st.uuids()),
    Kind(Path, st.sampled_from([Path("/a/b"), Path("c"), Path()])),
    Kind(Colour, st.sampled_from(Colour)),
    Kind(Level, st.sampled_from(Level)),
    Kind(Literal["a", 2], st.sampled_from(["a", 2])),
)
JSON = st.recursive(
    st.none() | st.booleans() | LONGS | FINITE | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
# Types whose values JSON may not hold, or does not tell from those of another type.
DOUBTFUL: tuple[Kind, ...] = (
    Kind(float, st.floats(), False),
    Kind(int, st.integers(), False),
    Kind(str, st.text(st.characters(codec=None), max_size=3), False),
    Kind(bytes, st.binary(max_size=5), False),
    Kind(Decimal, st.decimals(), False),
    Kind(datetime.datetime | datetime.date | str, MOMENTS | st.dates() | st.text(max_size=3), False),
    Kind(uuid.UUID | str, st.uuids() | st.uuids().map(str), False),
    Kind(Decimal | float, st.decimals(allow_nan=False) | FINITE, False),
    Kind(Any, JSON | st.tuples(LONGS) | st.binary(max_size=3) | st.dates() | st.sets(LONGS, max_size=2), False),
    Kind(dict[int, str] | dict[str, str], st.dictionaries(LONGS | st.text(max_size=2), st.text(max_size=2)), False),
)


def _containers(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def of(kind: Kind, other: Kind) -> list[Kind]:
        found = [
            Kind(list[kind.type], st.lists(kind.values, max_size=3), False),  # type: ignore[name-defined]
            Kind(dict[str, kind.type], st.dictionaries(st.text(max_size=3), kind.values, max_size=3), False),  # type: ignore[name-defined]
            Kind(tuple[kind.type, ...], st.lists(kind.values, max_size=3).map(tuple), False),  # type: ignore[name-defined]
            Kind(kind.type | None, st.none() | kind.values, False),
        ]
        if not _is_container(kind) and not _is_container(other):
            found.append(Kind(tuple[kind.type, other.type], st.tuples(kind.values, other.values), False))  # type: ignore[name-defined]
        if kind.can_be_key:
            found.append(Kind(set[kind.type], st.sets(kind.values, max_size=3), False))  # type: ignore[name-defined]
        if kind.type in (int, str, uuid.UUID, datetime.date):
            found.append(Kind(dict[kind.type, int], st.dictionaries(kind.values, LONGS, max_size=3), False))  # type: ignore[name-defined]
        return found

    return st.tuples(inner, inner).flatmap(lambda pair: st.sampled_from(of(*pair)))


def _is_container(kind: Kind) -> bool:
    return typing.get_origin(kind.type) is not None


def kinds(leaves: tuple[Kind, ...]) -> st.SearchStrategy[Kind]:
    """Return types of fields, with lists, mappings, sets and tuples of them, and classes."""
    containers = st.recursive(st.sampled_from(leaves), _containers, max_leaves=3)
    return containers | models(containers).map(lambda made: Kind(made.type, made.values, False))


@st.composite
def models(draw: Callable[[Any], Any], fields: st.SearchStrategy[Kind]) -> Kind:
    """Return a class, a pydantic model or a dataclass, and its instances."""
    chosen: list[Kind] = draw(st.lists(fields, min_size=1, max_size=FIELDS_MAX))
    name = f"Made{next(_numbers)}"
    names = [f"f{number}" for number in range(len(chosen))]
    parts = dict(zip(names, chosen, strict=True))
    made: Any
    if draw(st.booleans()):
        typed: dict[str, Any] = {each: (kind.type, ...) for each, kind in parts.items()}
        made = pydantic.create_model(name, **typed)
    else:
        made = dataclasses.make_dataclass(name, [(each, kind.type) for each, kind in parts.items()])
    values = st.fixed_dictionaries({each: kind.values for each, kind in parts.items()})
    return Kind(made, values.map(_made_by(made)), False)


def _made_by(made: Any) -> Callable[[dict[str, Any]], Any]:
    make: Any = getattr(made, "model_construct", made)  # no check: a producer has to check
    return lambda values: make(**values)


def some(values: st.SearchStrategy[Any], number: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=number, max_size=number)


def generated(strategy: st.SearchStrategy[Any], of: int, number: int) -> list[Any]:
    """Return examples of a strategy that are the same in each run with a seed."""
    found: list[Any] = []

    @seed(of)
    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found[-number:]  # the first ones are the smallest


def are_equal(sent: Any, read: Any) -> bool:
    """Return whether two values are equal, and NaN in the same places."""
    if isinstance(sent, float | Decimal) and isinstance(read, float | Decimal):
        return (math.isnan(sent) and math.isnan(read)) or bool(sent == read)
    if type(sent) is not type(read):
        return bool(sent == read) and not isinstance(sent, list | tuple | set | dict)
    if isinstance(sent, dict):
        return sent.keys() == read.keys() and all(are_equal(sent[key], read[key]) for key in sent)
    if isinstance(sent, list | tuple):
        return len(sent) == len(read) and all(map(are_equal, sent, read))
    if dataclasses.is_dataclass(sent) or isinstance(sent, pydantic.BaseModel):
        return are_equal(dict(vars(sent)), dict(vars(read)))
    return bool(sent == read)

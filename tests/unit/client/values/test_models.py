"""Models and dataclasses: generated classes, values and evolutions."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from functools import partial
from typing import Any, cast

import fastavro
import pydantic
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.schema.compatibility import check_compatible
from heliograph.base.errors import BadRequestError
from heliograph.client.schemas.models import ModelSchema
from heliograph.pipelines.reading.shapes.values import cells_of
from tests.examples import examples
from tests.unit.client.values.strategies import DOUBTFUL, PLAIN, Kind, are_equal, kinds, models

EXAMPLES = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def require_field(error: BadRequestError) -> None:
    """Fail unless an error names a field of a generated class."""
    assert re.search(r"\bf[0-9]\b", str(error)), str(error)


def read_back(schema: ModelSchema, packed: bytes) -> Any:
    return schema.decoder(schema.info)(packed)


@EXAMPLES
@given(models(kinds(PLAIN)), st.data())
def test_plain_values_come_back_as_they_were(kind: Kind, data: st.DataObject) -> None:
    schema, value = ModelSchema(kind.type), data.draw(kind.values)
    assert are_equal(value, read_back(schema, schema.encode(value)))
    fastavro.parse_schema(json.loads(schema.info.data))


@EXAMPLES
@given(models(st.sampled_from(DOUBTFUL) | kinds(PLAIN + DOUBTFUL)), st.data())
def test_a_value_comes_back_as_it_was_or_is_refused_by_the_name_of_its_field(kind: Kind, data: st.DataObject) -> None:
    try:
        schema = ModelSchema(kind.type)
    except BadRequestError as error:
        require_field(error)
        return
    fastavro.parse_schema(json.loads(schema.info.data))
    value = data.draw(kind.values)
    try:
        packed = schema.encode(value)
    except BadRequestError as error:
        require_field(error)
        return
    assert are_equal(value, read_back(schema, packed))
    packed.decode()
    json.loads(packed, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


@EXAMPLES
@given(models(kinds(PLAIN)), st.lists(kinds(PLAIN) | st.sampled_from(DOUBTFUL), min_size=1, max_size=3), st.data())
def test_fields_with_a_default_may_be_added_and_removed(old: Kind, added: list[Kind], data: st.DataObject) -> None:
    defaults = [data.draw(kind.values) for kind in added]
    new = widened(old.type, [kind.type for kind in added], defaults)
    try:
        before, after = ModelSchema(old.type), ModelSchema(new)
    except BadRequestError:
        assume(False)
    for strategy in ("FULL", "FULL_TRANSITIVE", "BACKWARD", "FORWARD"):
        check_compatible(after.info, [before.info], strategy)
        check_compatible(before.info, [after.info], strategy)
    value = data.draw(old.values)
    packed = before.encode(value)
    shown = read_back(after, packed)
    for name, part in vars(value).items():
        assert are_equal(part, getattr(shown, name))
    for number, default in enumerate(defaults):
        assert are_equal(default, getattr(shown, f"more{number}"))
    try:
        widely = after.encode(shown)
    except BadRequestError:
        return  # a default that JSON does not hold
    assert are_equal(value, read_back(before, widely))


def widened(old: Any, added: list[Any], defaults: list[Any]) -> Any:
    """Return a class of the same name and fields, with more fields that have defaults."""
    names = [f"more{number}" for number in range(len(added))]
    parts = list(zip(names, added, defaults, strict=True))
    if dataclasses.is_dataclass(old):
        fields = [
            (name, kind, dataclasses.field(default_factory=partial(copy.copy, value))) for name, kind, value in parts
        ]
        return dataclasses.make_dataclass(getattr(old, "__name__", ""), fields, bases=(cast("type", old),))
    more: Any = {name: (kind, value) for name, kind, value in parts}
    return pydantic.create_model(old.__name__, __base__=old, **more)


@dataclasses.dataclass
class Loose:
    payload: dict[str, Any]
    anything: Any
    pair: tuple[int, str]
    bare: list  # type: ignore[type-arg]  # users write it so


def test_values_of_any_form_are_json_in_tables() -> None:
    schema = ModelSchema(Loose)
    value = Loose({"a": [1, {"b": None}], "c": "text"}, 7, (1, "x"), ["y", 2.5])
    packed = schema.encode(value)
    assert read_back(schema, packed) == value
    shown = cells_of(schema.info, schema.info)(packed)
    assert shown["payload"] == [("a", '[1,{"b":null}]'), ("c", '"text"')]
    assert (shown["anything"], shown["bare"]) == ("7", ['"y"', "2.5"])
    assert shown["pair"] == [{"member0": 1}, {"member1": "x"}]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Loose({"a": {1, 2}}, None, (1, "x"), []), "payload['a']"),
        (Loose({}, (1, 2), (1, "x"), []), "anything"),
        (Loose({}, b"\xff", (1, "x"), []), "anything"),
        (Loose({}, math.inf, (1, "x"), []), "anything"),
        (Loose({}, None, (1 << 63, "x"), []), "pair[0]"),
    ],
)
def test_the_place_of_what_does_not_come_back_is_named(value: Loose, place: str) -> None:
    with pytest.raises(BadRequestError, match=f"^{re.escape(place)} "):
        ModelSchema(Loose).encode(value)

"""The parser of JSON that strangers send: what it takes, and what it refuses with a limit that it names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import MalformedJsonError
from heliograph.base.guard.json_text import DEPTH_MAX, parse_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    LEAVES | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=50,
)


@given(VALUES, st.booleans())
def test_what_json_can_say_is_read_from_texts_and_bytes(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert parse_json(text, "it", "it") == value
    assert parse_json(text.encode(), "it", "it") == value


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("[" * 1_000, "64 levels"),
        ('{"a":' * 1_000 + "1" + "}" * 1_000, "64 levels"),
        ("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), "64 levels"),
        ("[" + "1" * 21 + "]", "20 digits"),
        ("1" * 100_000, "20 digits"),
        (str(list(range(5_000))), "5000 values"),
        (json.dumps({"a": {"b": list(range(4_998))}}), "5000 values"),
        ("1e999", None),
        ("NaN", None),
        ("-Infinity", None),
        ('["\\ud800"]', None),
        (b'["\xed\xa0\x80"]', None),
        (b"\xff\xfe[\x001\x00]\x00", None),
        ("", None),
        ("[1", None),
        ("[1] 2", None),
    ],
)
def test_what_is_above_a_limit_or_not_json_is_refused(text: str | bytes, limit: str | None) -> None:
    with pytest.raises(MalformedJsonError, match="the frame") as refused:
        parse_json(text, "the frame", "frame", values_max=5_000)
    assert (refused.value.field, refused.value.limit) == ("frame", limit)
    assert len(str(refused.value)) < 200


def test_the_limits_themselves_are_taken() -> None:
    assert parse_json("[" * DEPTH_MAX + "]" * DEPTH_MAX, "it", "it")
    assert parse_json(f"[{1 << 63},-{(1 << 63) - 1}]", "it", "it") == [1 << 63, 1 - (1 << 63)]
    assert parse_json('["a,b,c,{[\\",", 2, "\\ud83d\\ude00"]', "it", "it", values_max=4) == ['a,b,c,{[",', 2, "😀"]

"""The expressions that clients choose topics by: as Python's ``re`` has them, but in linear time."""

from __future__ import annotations

import contextlib
import random
import re
import resource
import time
from collections.abc import Iterator

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.base.errors import UnsupportedError
from heliograph.protocol import topics_pattern
from heliograph.protocol.topics_pattern import CHUNK_NAMES, PREFIX_BYTES_MAX, TopicNames, TopicsPattern, topics_hash
from tests.examples import examples

ATOMS = st.sampled_from(
    ["a", "b", "-", ".", r"\.", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", r"\W", "0", "^", "$", r"[\d-]", "[]a]", "é"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(lambda one, other: one + other, inner, inner),
        st.builds(lambda one, other: f"({one}|{other})", inner, inner),
        st.builds(lambda one, how: f"(?:{one}){how}", inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"])),
    ),
    max_leaves=12,
)


@settings(max_examples=examples(400), deadline=None)
@given(pattern=PATTERNS, name=st.text("ab-.0cé", max_size=6))
def test_it_agrees_with_python(pattern: str, name: str) -> None:
    expected = re.fullmatch(pattern.replace("$", r"\Z"), name, re.ASCII) is not None
    assert TopicsPattern(pattern).matches(name) is expected


@settings(max_examples=examples(400), deadline=None)
@given(pattern=PATTERNS, name=st.text("ab-.0cé", max_size=6))
def test_what_matches_begins_with_the_prefix(pattern: str, name: str) -> None:
    compiled = TopicsPattern(pattern)
    assert not compiled.matches(name) or name.startswith(compiled.prefix)


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("persistent://public/default/(?:orders-.*)", "public/default/orders-"),
        (r"t\.x/n/(?:bé|bè)", "t.x/n/b"),
        ("public/default/orders", "public/default/orders"),
        ("public/default/ab?c", "public/default/a"),
        ("(?i)public/.*", ""),
        (".*-orders", ""),
        ("x" * 900, "x" * 255),
    ],
)
def test_prefixes(pattern: str, prefix: str) -> None:
    assert TopicsPattern(pattern).prefix == prefix


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("persistent://public/default/or.*", "public/default/orders", True),
        ("^non-persistent://public/default/orders$", "public/default/orders", True),
        (r"public/default/\Qa.b\E", "public/default/a.b", True),
        (r"public/default/\Qa.b\E", "public/default/axb", False),
        ("(?P<tenant>public)/(?<ns>default)/x", "public/default/x", True),
        ("", "", True),
        ("x{0}", "", True),
        ("[a-]", "-", True),
        (r"[\-\]]", "]", True),
        (r"\t", "\t", True),
        ("(?i)ORDERS", "orders", True),
        (r"\bword", "word", True),
        (r"\p{L}+", "wört", True),
        ("[[:alpha:]]", "a", True),
        ("[a&&b]", "&", True),
    ],
)
def test_forms(pattern: str, name: str, expected: bool) -> None:
    assert TopicsPattern(pattern).matches(name) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(?!a).*", "(?=a)a", "(?<=a)b", "(?<!a)b", r"(a)\1", "a++", "a**", "(", ")", "[a", "a{2,1}", "a{9999}", "*",
        "a" * 1_001, "((a{100}){100}){100}", "\\", "[z-a]", "\udc80"
    ],
)  # fmt: skip
def test_what_is_not_supported_is_said(pattern: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        TopicsPattern(pattern)
    assert raised.value.field == "topicsPattern"


def test_no_expression_takes_long() -> None:
    """Python's ``re`` would not come to an end here, and would stop every other client of the broker."""
    started = time.monotonic()
    for pattern in ("(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*a){20}", "(a?){400}a{400}"):
        assert len(TopicsPattern(pattern).prefix) <= PREFIX_BYTES_MAX
        for length in (100, 255):
            TopicsPattern(pattern).matches("a" * length + "c")
    assert time.monotonic() - started < 20


def test_an_expression_takes_little_memory() -> None:  # I15
    """Each of them is refused or small, whatever its states are."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(40):
        bounded = (r"(\pL{30}|[^a]{30}){N}", "(x{N}y?){9}", "[^a]{9N}.*", "(a|b|c){N}(.*d){N}")
        for pattern in (form.replace("N", str(number)) for form in bounded):
            with contextlib.suppress(UnsupportedError):
                TopicsPattern(pattern).matches("é" * 250)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


@pytest.mark.parametrize("seed", range(20))
def test_names_that_come_and_go_have_the_hash_of_their_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_pattern, "CHUNK_NAMES", 4)
    chance, known, names = random.Random(seed), set[str](), TopicNames()
    for _ in range(300):
        name = f"n{chance.randrange(60)}"
        assert (name in names) is (name in known)
        if chance.random() < 0.5:
            assert names.add(name) is (name not in known)
            known.add(name)
        else:
            assert names.discard(name) is (name in known)
            known.discard(name)
        assert list(names) == sorted(known)
        if chance.random() < 0.5:
            assert names.hash == topics_hash(known) == crc_of(known)


def crc_of(names: set[str]) -> str:
    return crc32c.crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


def test_a_change_of_many_names_reads_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    names = TopicNames(f"n{number:06d}" for number in range(70_000))
    assert names.hash
    read = 0

    class Chunk(list[str]):
        def __iter__(self) -> Iterator[str]:
            nonlocal read
            read += len(self)
            return super().__iter__()

    names._chunks = list(map(Chunk, names._chunks))
    assert names.add("n035000x")
    changed = names.hash
    assert read <= CHUNK_NAMES + 1
    assert changed == topics_hash(names)

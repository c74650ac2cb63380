"""Regular expressions for names of topics, in time linear in the name whatever the client wrote (pure).

The syntax is RE2's as far as names need it: literals, classes, groups, alternatives, repetitions and anchors. What
cannot be matched in linear time, such as look-ahead and back references, is not supported. An expression becomes a
non-deterministic automaton, and its sets of states are remembered, so that a name costs one look-up for each character
in the common case. A name is matched as a whole.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from heliograph.base.errors import UnsupportedError

PATTERN_CHARACTERS_MAX = 1_000
STATES_MAX = 2_000  # of the automaton
REMEMBERED_MAX = 5_000  # transitions between sets of states
NESTING_MAX = 40  # groups within groups
REPETITIONS_MAX = 1_000

_DIGITS = (("0", "9"),)
_WORD = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_EVERYTHING = (("\0", "\U0010ffff"),)

Ranges = tuple[tuple[str, str], ...]


class _When(enum.Enum):
    """Where a step without a character may be taken."""

    ALWAYS = 0
    AT_START = 1
    AT_END = 2


@dataclass(slots=True)
class _State:
    characters: tuple[Ranges, bool] | None = None  # what is read to get to ``after``; True: anything else
    after: int = -1
    empty: list[tuple[int, _When]] = field(default_factory=list)  # steps that read nothing


@dataclass(frozen=True, slots=True)
class _Characters:
    ranges: Ranges
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class _Anchor:
    when: _When


@dataclass(frozen=True, slots=True)
class _Row:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node = _Characters | _Anchor | _Row | _Choice | _Repeat


class TopicsPattern:
    """One expression.

    Raises:
        UnsupportedError: the expression is too long, or has a form that is not supported.
    """

    def __init__(self, expression: str) -> None:
        if len(expression) > PATTERN_CHARACTERS_MAX:
            raise UnsupportedError(
                "the pattern is too long", field="topicsPattern", limit=f"{PATTERN_CHARACTERS_MAX} characters"
            )
        self._states: list[_State] = []
        self._end = self._new()
        start = self._add(_Parser(_without_domain(expression)).parse(), self._end)
        self._start = self._closure([start], at_start=True)
        self._remembered: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Return whether the expression matches the whole name."""
        states = self._start
        for character in name:
            known = self._remembered.get((states, character))
            if known is None:
                known = self._step(states, character)
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[(states, character)] = known
            states = known
            if not states:
                return False
        return self._end in self._closure(states, at_start=not name, at_end=True)

    def _step(self, states: Iterable[int], character: str) -> frozenset[int]:
        found = []
        for number in states:
            state = self._states[number]
            if state.characters is not None:
                ranges, is_negated = state.characters
                if any(low <= character <= high for low, high in ranges) is not is_negated:
                    found.append(state.after)
        return self._closure(found)

    def _closure(self, states: Iterable[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        found, waiting = set(states), list(states)
        while waiting:
            for after, when in self._states[waiting.pop()].empty:
                is_open = when is _When.ALWAYS or (at_start if when is _When.AT_START else at_end)
                if is_open and after not in found:
                    found.add(after)
                    waiting.append(after)
        return frozenset(found)

    def _new(self) -> int:
        if len(self._states) >= STATES_MAX:
            raise UnsupportedError("the pattern is too complex", field="topicsPattern", limit=f"{STATES_MAX} states")
        self._states.append(_State())
        return len(self._states) - 1

    def _add(self, node: _Node, after: int) -> int:
        """Add the states of a part of the expression. Return the first; ``after`` is where its matches end."""
        if isinstance(node, _Row):
            for part in reversed(node.parts):
                after = self._add(part, after)
            return after
        first = self._new()
        state = self._states[first]
        if isinstance(node, _Characters):
            state.characters, state.after = (node.ranges, node.is_negated), after
        elif isinstance(node, _Anchor):
            state.empty.append((after, node.when))
        elif isinstance(node, _Choice):
            state.empty += [(self._add(part, after), _When.ALWAYS) for part in node.parts]
        else:
            state.empty.append((self._repeat(node, after), _When.ALWAYS))
        return first

    def _repeat(self, node: _Repeat, after: int) -> int:
        if node.most is None:
            loop = self._new()
            self._states[loop].empty += [(self._add(node.part, loop), _When.ALWAYS), (after, _When.ALWAYS)]
            first = loop
        else:
            first = after
            for _ in range(node.most - node.least):
                option = self._new()
                self._states[option].empty += [(self._add(node.part, first), _When.ALWAYS), (after, _When.ALWAYS)]
                first = option
        for _ in range(node.least):
            first = self._add(node.part, first)
        return first


class _Parser:
    """Reads one expression from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        """Return the expression."""
        node = self._choice()
        if self._at < len(self._text):
            raise self._unsupported("')' without '('")
        return node

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._unsupported(f"more than {NESTING_MAX} groups within each other")
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._take(r"\Q"):
                end = self._text.find(r"\E", self._at)
                end = len(self._text) if end < 0 else end
                parts += [_Characters(((one, one),)) for one in self._text[self._at : end]]
                self._at = end + 2
                continue
            parts.append(self._repeated(self._atom()))
        return _Row(tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        while self._at < len(self._text) and self._text[self._at] in "*+?{":
            if isinstance(node, _Repeat):
                raise self._unsupported("a repetition of a repetition")
            if self._take("{"):
                least, most = self._bounds()
            else:
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._next()]
            node = _Repeat(node, least, most)
            self._take("?")  # reluctant: the same where the whole name has to match
        return node

    def _bounds(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at : max(end, self._at)].partition(",")
        texts = [one for one in (least, most) if one]
        if not least or not all(one.isascii() and one.isdigit() and len(one) < 5 for one in texts):
            raise self._unsupported("'{' without numbers")
        self._at = end + 1
        low = int(least)
        high = (int(most) if most else None) if comma else low
        if max(low, high or 0) > REPETITIONS_MAX or (high is not None and high < low):
            raise self._unsupported(f"a repetition outside 0 to {REPETITIONS_MAX}")
        return low, high

    def _atom(self) -> _Node:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character in "*+?{":
            raise self._unsupported(f"{character!r} after nothing")
        if character in "^$":
            return _Anchor(_When.AT_START if character == "^" else _When.AT_END)
        return _Characters(_EVERYTHING if character == "." else ((character, character),))

    def _group(self) -> _Node:
        if self._take("?"):
            is_named = self._take("P<") or (self._take("<") and self._peek() not in "=!")
            if is_named:
                self._at = self._text.find(">", self._at) + 1 or len(self._text)
            elif not self._take(":"):
                raise self._unsupported("'(?' of this kind")
        node = self._choice()
        if not self._take(")"):
            raise self._unsupported("'(' without ')'")
        return _Row((node,))

    def _escape(self) -> _Node:
        character = self._next()
        if character in "Az":
            return _Anchor(_When.AT_START if character == "A" else _When.AT_END)
        return self._escaped(character)

    def _escaped(self, character: str) -> _Characters:
        ranges = _CLASSES.get(character.lower())
        if ranges is not None:
            return _Characters(ranges, is_negated=character.isupper())
        literal = _CONTROL.get(character, character)
        if literal == character and (character.isalnum() or character == "_"):
            raise self._unsupported(rf"\{character}")
        return _Characters(((literal, literal),))

    def _class(self) -> _Node:
        ranges: list[tuple[str, str]] = []
        is_negated, is_first = self._take("^"), True
        while is_first or self._peek() != "]":
            is_first = False
            low = self._next()
            if (low == "[" and self._peek() == ":") or (low == "&" and self._peek() == "&") or low == "[":
                raise self._unsupported("a class within a class")
            if low == "\\":
                found = self._escaped(self._next())
                if found.is_negated:
                    raise self._unsupported("a negated class within a class")
                if len(found.ranges) > 1 or found.ranges == _DIGITS:
                    ranges += found.ranges
                    continue
                low = found.ranges[0][0]
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._next()
                high = self._next()
                if high == "\\":
                    high = self._escaped(self._next()).ranges[0][0]
            if high < low:
                raise self._unsupported("a class with a range that runs backwards")
            ranges.append((low, high))
        self._next()
        return _Characters(tuple(ranges), is_negated)

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._unsupported("an end in the middle")
        self._at += 1
        return self._text[self._at - 1]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1] or "\0"

    def _take(self, expected: str) -> bool:
        is_there = self._text.startswith(expected, self._at)
        self._at += len(expected) if is_there else 0
        return is_there

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"the pattern has {what}, which is not supported", field="topicsPattern")


def _without_domain(expression: str) -> str:
    """Return the expression without the domain that clients put in front: names are matched without theirs."""
    _, separator, rest = expression.partition("://")
    return rest if separator else expression

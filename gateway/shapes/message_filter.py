"""Which messages a search wants: by key, property, text, and a value at a path in JSON. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.base.errors import BadRequestError, MalformedJsonError
from heliograph.base.guard.json_text import parse_json
from heliograph.gateway.shapes.bodies import VALUES_MAX

PATH_STEPS_MAX = 16  # names and indices of a path  # I15
MATCHES_MAX = 1_000  # values at one path, of one message  # I15
_ROOT = ""  # a step that no name is
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,9}|\*)\]")


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The conditions of a search; a message has to meet all that are set.

    Attributes:
        key: the whole key.
        property_name: a property that the message has, with ``property_value`` if that is not None.
        text: is somewhere in the payload as text, whatever the case of letters.
        path: names and indices, of which "*" is any, that lead to a value in the payload's JSON.
            ``_ROOT`` is all of it.
        value: text of the value at the path; None: any.
    """

    key: str | None = None
    property_name: str = ""
    property_value: str | None = None
    text: str = ""
    path: tuple[str, ...] = ()
    value: str | None = None

    @property
    def needs_payload(self) -> bool:
        return bool(self.text or self.path)

    @property
    def hidden(self) -> str:
        """Name what it asks of a payload or of a property's value, which a policy may hide; empty if nothing."""
        asked = {"text": self.text, "path": self.path, "property": self.property_value is not None}
        return next((name for name, is_asked in asked.items() if is_asked), "")

    def matches(self, key: str | None, properties: Mapping[str, str], shown: str | None) -> bool:
        """Return whether a message meets the conditions.

        Args:
            shown: the payload as text, decoded by its schema; None: it is no text, or the value is null.
        """
        if self.key is not None and key != self.key:
            return False
        if self.property_name:
            found = properties.get(self.property_name)
            if found is None or (self.property_value is not None and found != self.property_value):
                return False
        if not self.needs_payload:
            return True
        if shown is None or self.text.casefold() not in shown.casefold():
            return False
        return not self.path or self._has_value(shown)

    def _has_value(self, shown: str) -> bool:
        try:
            body = parse_json(shown, "the message", "payload", values_max=VALUES_MAX, is_content=True)
        except MalformedJsonError:
            return False
        found = [body]
        for step in self.path:
            found = [value for each in found for value in _at(each, step)][:MATCHES_MAX]
        return bool(found) if self.value is None else any(_text(value) == self.value for value in found)


def path_of(text: str) -> tuple[str, ...]:
    """Return the steps of a path such as ``order.lines[*].sku`` or ``$.total``; ``$`` is the whole value.

    Raises:
        BadRequestError: it has another form, or too many steps.
    """
    if text == "$":
        return (_ROOT,)
    rest, steps = text.removeprefix("$"), []
    while rest:
        match = _STEP.match(rest)
        if match is None:
            raise BadRequestError(f"{text!r:.80} is no path such as order.lines[*].sku", field="path")
        steps.append(match[1] if match[1] is not None else f"[{match[2]}]")
        rest = rest[match.end() :]
    if len(steps) > PATH_STEPS_MAX:
        raise BadRequestError("the path is too long", field="path", limit=f"{PATH_STEPS_MAX} steps")
    return tuple(steps)


def _at(value: Any, step: str) -> list[Any]:
    if step == _ROOT:
        return [value]
    if step == "[*]":
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if step.startswith("["):
        index = int(step[1:-1])
        return [value[index]] if isinstance(value, list) and index < len(value) else []
    return [value[step]] if isinstance(value, dict) and step in value else []


def _text(value: Any) -> str:
    """Return a value as people write it: values that are no text as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

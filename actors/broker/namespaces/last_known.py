"""Answers of the metadata store that are given again while it is silent (pure)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

ANSWERS_MAX = 10_000  # of one kind; the one that was noted or asked for least lately is forgotten (I15)


class LastKnown(Generic[K, V]):
    """The latest answers of one kind. They may be old: a lookup that goes wrong by one is corrected by its broker."""

    def __init__(self) -> None:
        self._answers: OrderedDict[K, V] = OrderedDict()

    def note(self, key: K, answer: V) -> V:
        """Remember an answer, and return it."""
        self._answers[key] = answer
        self._answers.move_to_end(key)
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        return answer

    def get(self, key: K) -> V | None:
        """Return the latest answer, None if there is none."""
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

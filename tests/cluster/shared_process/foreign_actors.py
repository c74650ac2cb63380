"""Named actors of other programs, as users of a cluster's Ray make them."""

from __future__ import annotations

import time
from typing import Any

import ray


class Model:
    """An actor that answers its own calls."""

    def predict(self, value: int) -> int:
        return value + 1


class Wrong(Model):
    """An actor with the methods that parts are asked, which answer what no part answers."""

    def part_facts(self) -> int:
        return 7

    def pid(self) -> str:
        return "not a number"


class Raising(Model):
    """An actor whose methods raise what Ray wraps."""

    def part_facts(self) -> None:
        raise MemoryError("not a HeliographError")

    def start(self) -> None:
        raise SystemError("not a HeliographError")


class Hanging(Model):
    """An actor that does not answer calls about itself."""

    def part_facts(self) -> None:
        time.sleep(3_600)


FOREIGN: tuple[type[Model], ...] = (Model, Wrong, Raising, Hanging)


def make(kind: type[Model], name: str, **options: Any) -> Any:
    """Create a named actor and call it."""
    made: Any = ray.remote(num_cpus=0)(kind)
    actor = made.options(name=name, **options).remote()
    assert answers(actor)
    return actor


def answers(actor: Any) -> bool:
    """Return whether an actor answers its users."""
    return bool(ray.get(actor.predict.remote(1)) == 2)

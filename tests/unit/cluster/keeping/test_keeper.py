"""What Ray's pages say of the actor of a part, and what its next process does first."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from heliograph.cluster.keeping import host
from heliograph.cluster.keeping.keeper import kept, made_of
from heliograph.cluster.parts import Part
from heliograph.metadata.errors import ConnectionLossError


class Nothing:
    """A part that does nothing."""


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (Part("bookie-1", "bookie", port=3181, rack="r2"), "bookie-1(10.0.0.5, rack r2, port 3181)"),
        (Part("broker-1", "broker", port=0, tls_port=6651), "broker-1(10.0.0.5)"),
        (Part("gateway", "gateway", port=8080), "gateway(10.0.0.5, port 8080)"),
        (Part("operator", "operator"), "operator(10.0.0.5)"),
    ],
)
def test_a_repr_has_what_never_changes(part: Part, shown: str) -> None:
    actor: Any = object.__new__(kept(Nothing, part.name, "heliograph", (), part.shown))
    actor._keeper = SimpleNamespace(plan=SimpleNamespace(node_address="10.0.0.5"))
    assert repr(actor) == shown


class StandIn:
    """A part that others stand in for."""

    told: ClassVar[list[str]] = []

    @staticmethod
    async def after_end(name: str) -> None:
        if name == "unreachable":
            raise ConnectionLossError("the store is silent")
        StandIn.told.append(name)


def test_a_process_tells_of_the_end_of_the_one_before_it(caplog: pytest.LogCaptureFixture) -> None:
    plans = [(StandIn, "a"), (Nothing, "b"), (StandIn, "unreachable"), (StandIn, "c")]
    for kind, name in plans:
        host._report_end(cast(Any, SimpleNamespace(part=name, made_of=made_of(kind, (name,)))))
    assert StandIn.told == ["a", "c"]
    assert "the store is silent" in caplog.text


async def test_a_part_is_made_when_the_end_of_the_one_before_it_was_told() -> None:
    """The session that is registered is ended: later on, that would be the own one of the part."""
    told = threading.Event()
    telling = threading.Thread(target=told.wait)
    telling.start()
    part = host.PartHost(cast(Any, SimpleNamespace(part="a", made_of=made_of(Nothing, ()))), telling)
    making = asyncio.create_task(part._make())
    try:
        for _ in range(10):
            await asyncio.sleep(0)
        assert not part._part.done()
    finally:
        told.set()
        await making
    assert isinstance(await part._part, Nothing)

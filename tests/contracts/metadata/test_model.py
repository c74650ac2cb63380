"""Random operations of several sessions: each backend answers and tells exactly what the memory backend does.

A real ZooKeeper is one of the backends, which makes it the oracle of all the others. Transaction ids are compared by
their order. The events of a session's end are compared without their order.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from heliograph.metadata.errors import MetadataError
from heliograph.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    Operation,
    Set,
    Stat,
    Watch,
    WatchEvent,
)
from tests.cluster.support.bookie_folders import MEMORY
from tests.contracts.endpoint.backends import EndpointOverMemory
from tests.contracts.metadata.backends import ChrootBackend, EmbeddedBackend, MemoryBackend, ZooKeeperBackend
from tests.contracts.metadata.etcd_backend import EtcdBackend
from tests.contracts.metadata.zookeeper_server import missing as missing_zookeeper

SESSIONS_MAX = 4
EXAMPLES = 20
paths = st.sampled_from(["/", "/a", "/b", "/a/a", "/a/b", "/a/b/c", "/b/a", "/bad/", "/a/s-"])
values = st.sampled_from([b"", b"x", b"y" * 300])
versions = st.sampled_from([ANY_VERSION, ANY_VERSION, 0, 1, 2, -2])
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, paths, values, st.booleans(), st.booleans()),
    st.builds(Set, paths, values, versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)
sessions = st.integers(0, SESSIONS_MAX - 1)
Call = Callable[[MetadataStore], Awaitable[object]]
Told = list[tuple[int, WatchEvent]]


class Pair:
    """The same session on both backends, with the events that each was told."""

    def __init__(self, real: MetadataStore, model: MetadataStore) -> None:
        self.real = real
        self.model = model
        self.real_events: Told = []
        self.model_events: Told = []


class SameOrder:
    """A map from the transaction ids of one store to the model's. It checks that both grow together."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []

    def check(self, real: int, model: int) -> None:
        place = bisect.bisect_left(self.pairs, (real, -1))
        if place < len(self.pairs) and self.pairs[place][0] == real:
            assert self.pairs[place][1] == model
            return
        assert place == 0 or self.pairs[place - 1][1] < model
        assert place == len(self.pairs) or model < self.pairs[place][1]
        self.pairs.insert(place, (real, model))


class AgainstMemory(RuleBasedStateMachine):
    """The state machine: ``real`` is the backend to be tested, ``model`` the memory backend."""

    real_class: ClassVar[type[Any]]  # of Backend
    model_class: ClassVar[type[Any]] = ChrootBackend

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None  # what is tested here does not need a disk
        self.directory = Path(tempfile.mkdtemp(prefix="heliograph-model-", dir=memory))
        self.real = type(self).real_class(self.directory)
        self.model = type(self).model_class(self.directory)
        self.pairs: list[Pair] = []
        self.owners: dict[int, int] = {0: 0}  # session ids of the real store -> of the model
        self.zxids = SameOrder()
        self.watches: list[tuple[Pair, Watch, Watch]] = []
        self.watch_count = 0

    @initialize()
    def begin(self) -> None:
        self.runner.run(self.real.start())
        self.runner.run(self.model.start())
        self.open()

    @precondition(lambda self: len(self.pairs) < SESSIONS_MAX)
    @rule()
    def open(self) -> None:
        pair = Pair(self.runner.run(self.real.open()), self.runner.run(self.model.open()))
        self.owners[pair.real.session_id] = pair.model.session_id
        self.pairs.append(pair)

    @rule(index=sessions, operation=operations)
    def one(self, index: int, operation: Operation) -> None:
        self.both(index, lambda store: store.multi([operation]))

    @rule(index=sessions, several=st.lists(operations, max_size=5))
    def multi(self, index: int, several: list[Operation]) -> None:
        self.both(index, lambda store: store.multi(several))

    @rule(index=sessions, path=paths, value=values, ephemeral=st.booleans(), sequence=st.booleans())
    def create(self, index: int, path: str, value: bytes, ephemeral: bool, sequence: bool) -> None:
        self.both(index, lambda store: store.create(path, value, ephemeral=ephemeral, sequence=sequence))

    @rule(index=sessions, path=paths)
    def make(self, index: int, path: str) -> None:
        self.both(index, lambda store: store.create(path, parents=True))

    @rule(index=sessions, path=paths, value=values, version=versions)
    def set(self, index: int, path: str, value: bytes, version: int) -> None:
        self.both(index, lambda store: store.set(path, value, version))

    @rule(index=sessions, path=paths, version=versions)
    def delete(self, index: int, path: str, version: int) -> None:
        self.both(index, lambda store: store.delete(path, version))

    @rule(index=sessions, path=paths, kind=st.sampled_from(["get", "exists", "children"]))
    def read(self, index: int, path: str, kind: str) -> None:
        self.both(index, lambda store: getattr(store, kind)(path))

    @rule(index=sessions, path=paths, start=st.sampled_from(["", "a", "a\0", "b"]), limit=st.integers(1, 3))
    def page(self, index: int, path: str, start: str, limit: int) -> None:
        self.both(index, lambda store: store.children_from(path, start, limit))

    @rule(index=sessions, path=paths, kind=st.sampled_from(["get", "exists", "children"]))
    def watch_once(self, index: int, path: str, kind: str) -> None:
        pair = self.pair(index)
        self.both(index, lambda store: getattr(store, kind)(path, self.watcher(pair, store)))
        self.watch_count += 1

    @rule(index=sessions, path=paths)
    def watch_all(self, index: int, path: str) -> None:
        pair = self.pair(index)
        standing: list[Watch] = []

        async def call(store: MetadataStore) -> None:
            standing.append(await store.watch(path, self.watcher(pair, store)))

        self.both(index, call)
        self.watch_count += 1
        if standing:
            real, model = standing
            self.watches.append((pair, real, model))

    @precondition(lambda self: self.watches)
    @rule(index=st.integers(0, 9))
    def cancel(self, index: int) -> None:
        _, real, model = self.watches.pop(index % len(self.watches))

        async def both() -> None:
            real.cancel()
            model.cancel()

        self.runner.run(both())

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(index=sessions, gently=st.booleans())
    def end(self, index: int, gently: bool) -> None:
        pair = self.pairs.pop(index % len(self.pairs))
        self.watches = [watch for watch in self.watches if watch[0] is not pair]
        for backend, store in ((self.real, pair.real), (self.model, pair.model)):
            self.runner.run(store.close() if gently else backend.expire(store))
        self.drain()
        for other in self.pairs:  # which of its ephemerals goes first is the store's business
            other.real_events.sort(key=repr)
            other.model_events.sort(key=repr)

    @precondition(lambda self: hasattr(self.real, "restart"))
    @rule()
    def restart(self) -> None:
        self.runner.run(self.real.restart())
        self.drain()

    @invariant()
    def same_events(self) -> None:
        self.drain()
        for pair in self.pairs:
            assert pair.real_events == pair.model_events
            pair.real_events.clear()
            pair.model_events.clear()

    def teardown(self) -> None:
        try:
            if self.pairs:
                for path in ["/", "/a", "/b", "/a/a", "/a/b", "/a/b/c", "/b/a"]:
                    self.both(0, lambda store, path=path: store.exists(path))  # type: ignore[misc]
                    self.both(0, lambda store, path=path: store.children(path))  # type: ignore[misc]
            self.runner.run(self.real.stop())
        finally:
            self.runner.close()
            shutil.rmtree(self.directory)

    def pair(self, index: int) -> Pair:
        return self.pairs[index % len(self.pairs)]

    def watcher(self, pair: Pair, store: MetadataStore) -> Callable[[WatchEvent], None]:
        number, events = self.watch_count, pair.real_events if store is pair.real else pair.model_events
        return lambda event: events.append((number, event))

    def drain(self) -> None:
        """Wait until every event was told."""
        for pair in self.pairs:
            self.runner.run(self.outcome(pair.real.sync))

    def both(self, index: int, call: Call) -> None:
        pair = self.pair(index)
        real = self.runner.run(self.outcome(lambda: call(pair.real)))
        model = self.runner.run(self.outcome(lambda: call(pair.model)))
        assert self.mapped(real, model) == model

    @staticmethod
    async def outcome(call: Callable[[], Awaitable[object]]) -> object:
        try:
            return await call()
        except MetadataError as error:
            return type(error), error.operation_index or 0

    def mapped(self, real: object, model: object) -> object:
        """Return a result of the real store with its ids of sessions and transactions replaced by the model's."""
        if isinstance(real, Stat) and isinstance(model, Stat):
            for ours, theirs in ((real.czxid, model.czxid), (real.mzxid, model.mzxid), (real.pzxid, model.pzxid)):
                self.zxids.check(ours, theirs)
            owner = self.owners[real.ephemeral_owner]
            return dataclasses.replace(
                real, ephemeral_owner=owner, czxid=model.czxid, mzxid=model.mzxid, pzxid=model.pzxid
            )
        if isinstance(real, tuple | list) and isinstance(model, tuple | list) and len(real) == len(model):
            return type(real)(self.mapped(ours, theirs) for ours, theirs in zip(real, model, strict=True))
        return real


class EmbeddedAgainstMemory(AgainstMemory):
    real_class = EmbeddedBackend
    model_class = MemoryBackend


class ZooKeeperAgainstMemory(AgainstMemory):
    real_class = ZooKeeperBackend


class EtcdAgainstMemory(AgainstMemory):
    real_class = EtcdBackend


class EndpointAgainstMemory(AgainstMemory):
    """The ZooKeeper backend on the ZooKeeper endpoint on the memory backend."""

    real_class = EndpointOverMemory
    model_class = MemoryBackend


def checked(machine: type[AgainstMemory], lacking: str = "", examples: int = EXAMPLES) -> type:
    """Return the state machine as a test, skipped where this machine lacks something for it."""
    case = machine.TestCase
    profile = settings()
    if not profile.derandomize:  # it is sent exploring
        examples = profile.max_examples
    case.settings = settings(max_examples=examples, stateful_step_count=30)
    return pytest.mark.skipif(bool(lacking), reason=lacking)(case)


test_embedded_against_memory = checked(EmbeddedAgainstMemory)
test_zookeeper_against_memory = checked(ZooKeeperAgainstMemory, missing_zookeeper())
test_etcd_against_memory = checked(EtcdAgainstMemory)
test_endpoint_against_memory = checked(EndpointAgainstMemory, examples=10)

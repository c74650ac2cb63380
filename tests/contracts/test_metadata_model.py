"""Random operations of several sessions: the embedded backend answers and tells exactly what the memory one does."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metadata.errors import MetadataError
from metadata.store import ANY_VERSION, Check, Create, Delete, MetadataStore, Operation, Set, Stat, WatchEvent
from tests.contracts.metadata_backends import EmbeddedBackend, MemoryBackend

SESSIONS_MAX = 4
paths = st.sampled_from(["/", "/a", "/b", "/a/a", "/a/b", "/a/b/c", "/b/a", "/bad/", "/a/s-"])
values = st.sampled_from([b"", b"x", b"y" * 300])
versions = st.sampled_from([ANY_VERSION, ANY_VERSION, 0, 1, 2])
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, paths, values, st.booleans(), st.booleans()),
    st.builds(Set, paths, values, versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)
Call = Callable[[MetadataStore], Awaitable[object]]


class _Pair:
    """The same session on both backends, with what each was told."""

    def __init__(self, real: MetadataStore, model: MetadataStore) -> None:
        self.real = real
        self.model = model
        self.real_events: list[tuple[int, WatchEvent]] = []
        self.model_events: list[tuple[int, WatchEvent]] = []


class EmbeddedAgainstMemory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="heliograph-model-"))
        self.real = EmbeddedBackend(self.directory)
        self.model = MemoryBackend(self.directory)
        self.pairs: list[_Pair] = []
        self.owners: dict[int, int] = {0: 0}  # session ids of the real store -> of the model
        self.watches = 0

    @initialize()
    def begin(self) -> None:
        self.runner.run(self.real.start())
        self.open()

    @precondition(lambda self: len(self.pairs) < SESSIONS_MAX)
    @rule()
    def open(self) -> None:
        pair = _Pair(self.runner.run(self.real.open()), self.runner.run(self.model.open()))
        self.owners[pair.real.session_id] = pair.model.session_id
        self.pairs.append(pair)

    @rule(index=st.integers(0, SESSIONS_MAX - 1), operation=operations)
    def one(self, index: int, operation: Operation) -> None:
        self.both(index, lambda store: store.multi([operation]))

    @rule(index=st.integers(0, SESSIONS_MAX - 1), several=st.lists(operations, max_size=5))
    def multi(self, index: int, several: list[Operation]) -> None:
        self.both(index, lambda store: store.multi(several))

    @rule(index=st.integers(0, SESSIONS_MAX - 1), path=paths)
    def make(self, index: int, path: str) -> None:
        self.both(index, lambda store: store.create(path, parents=True))

    @rule(index=st.integers(0, SESSIONS_MAX - 1), path=paths, kind=st.sampled_from(["get", "exists", "children"]))
    def read(self, index: int, path: str, kind: str) -> None:
        self.both(index, lambda store: getattr(store, kind)(path))

    @rule(
        index=st.integers(0, SESSIONS_MAX - 1),
        path=paths,
        kind=st.sampled_from(["get", "exists", "children", "watch"]),
    )
    def watch(self, index: int, path: str, kind: str) -> None:
        self.watches += 1
        number = self.watches
        pair = self.pairs[index % len(self.pairs)]

        def call(store: MetadataStore) -> Awaitable[object]:
            events = pair.real_events if store is pair.real else pair.model_events
            answer: Awaitable[object] = getattr(store, kind)(path, lambda event: events.append((number, event)))
            return answer

        self.both(index, call, compare=kind != "watch")

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(index=st.integers(0, SESSIONS_MAX - 1), gently=st.booleans())
    def end(self, index: int, gently: bool) -> None:
        pair = self.pairs.pop(index % len(self.pairs))
        for backend, store in ((self.real, pair.real), (self.model, pair.model)):
            self.runner.run(store.close() if gently else backend.expire(store))

    @rule()
    def restart(self) -> None:
        self.runner.run(self.real.restart())
        for pair in self.pairs:
            self.runner.run(self.outcome(pair.real.sync))

    @invariant()
    def same_events(self) -> None:
        for pair in self.pairs:
            self.runner.run(self.outcome(pair.real.sync))
            assert pair.real_events == pair.model_events

    def teardown(self) -> None:
        try:
            if self.pairs:
                self.same_tree()
            self.runner.run(self.real.stop())
        finally:
            self.runner.close()
            shutil.rmtree(self.directory)

    def same_tree(self) -> None:
        service = self.real.server._service
        assert service is not None
        real, model = service.tree, self.model.server._tree
        assert real.zxid == model.zxid
        assert {path: self.mapped(node.stat()) for path, node in real.nodes.items()} == {
            path: node.stat() for path, node in model.nodes.items()
        }

    def both(self, index: int, call: Call, *, compare: bool = True) -> None:
        pair = self.pairs[index % len(self.pairs)]
        real = self.runner.run(self.outcome(lambda: call(pair.real)))
        model = self.runner.run(self.outcome(lambda: call(pair.model)))
        if compare or isinstance(model, tuple):
            assert self.mapped(real) == model

    @staticmethod
    async def outcome(call: Callable[[], Awaitable[object]]) -> object:
        try:
            return await call()
        except MetadataError as error:
            return type(error), error.operation_index

    def mapped(self, result: object) -> object:
        """A result of the real store with the model's session ids."""
        if isinstance(result, Stat):
            return dataclasses.replace(result, ephemeral_owner=self.owners[result.ephemeral_owner])
        if isinstance(result, tuple | list):
            return type(result)(self.mapped(item) for item in result)
        return result


EmbeddedAgainstMemory.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, derandomize=True
)
test_embedded_against_memory = EmbeddedAgainstMemory.TestCase

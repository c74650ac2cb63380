"""Runs the effects of the real cores over the simulated network, bookies and store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from heliograph.actors.ledger.effects import (
    AddRequest,
    DeleteMetadata,
    Effect,
    LedgerEntry,
    ListEntries,
    ReadBatch,
    ReadEntry,
    ReadLac,
    ReadMetadata,
    Reply,
    SendAdd,
    SendCopy,
    SendLac,
    WriteMetadata,
)
from heliograph.metadata.errors import BadVersionError, MetadataError, NoNodeError
from heliograph.metadata.model import BookieRegistration
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.disk import Copy
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.ranges import AddRanges
from tests.simulation.cluster.store import Author, SimulatedStore
from tests.simulation.world import Process, World

TICK_MS = 50


class Brief:
    """An effect in a line of the trace. It is formatted only if the run is traced."""

    __slots__ = ("_effect",)

    def __init__(self, effect: Any) -> None:
        self._effect = effect

    def __str__(self) -> str:
        effect = self._effect
        entry = getattr(effect, "entry_id", getattr(effect, "first_entry_id", ""))
        if isinstance(effect, SendCopy):
            entry = effect.entry.entry_id
        place = f"{effect.ledger_id}:{entry}" if entry != "" else f"ledger {effect.ledger_id}"
        words = [f"{type(effect).__name__} {place}"]
        words += [name for name in ("fence", "recovery") if getattr(effect, name, False)]
        words += [f"LAC {effect.last_add_confirmed}"] if hasattr(effect, "last_add_confirmed") else []
        return " ".join(words)


class Said:
    """A bookie's answer in a line of the trace. It is formatted only if the run is traced."""

    __slots__ = ("_words",)

    def __init__(self, words: tuple[Any, ...]) -> None:
        self._words = words

    def __str__(self) -> str:
        return " ".join(self._text(word) for word in self._words if word not in (None, (), []))

    def _text(self, word: Any) -> str:
        if isinstance(word, Reply):
            return word.value
        if isinstance(word, LedgerEntry):
            return f"entry {word.entry_id}"
        if isinstance(word, list):
            return f"entries {word[0].entry_id} to {word[-1].entry_id}"
        return str(word)


class Cluster:
    """The parts that every runner uses: world, network, store, bookies."""

    def __init__(
        self, world: World, network: Network, store: SimulatedStore, bookies: Mapping[str, SimulatedBookie]
    ) -> None:
        self.world = world
        self.network = network
        self.store = store
        self.bookies = bookies
        self.messages_taken = 0
        self.on_send_add: Callable[[Author, SendAdd], None] = lambda author, effect: None
        self.on_entry_answer: Callable[[Author, ReadEntry, str, Reply], None] = lambda author, effect, b, reply: None
        self._runners = 0
        self._ranges: dict[tuple[str, str], AddRanges] = {}  # by process and bookie

    def ranges(self, process: Process, bookie_id: str) -> AddRanges:
        """Return what carries the adds of a process to a bookie."""
        key = (process.name, bookie_id)
        found = self._ranges.get(key)
        if found is None:

            def refused(runner: SimulatedRunner, bookie_id: str, tag: AddRequest, reply: Reply | None) -> None:
                runner.on_refused(bookie_id, tag, reply or Reply.UNKNOWN)

            bookie = self.bookies[bookie_id]
            found = self._ranges[key] = AddRanges(self.network, process, bookie, lambda action: action(), refused)
        return found

    def registered(self) -> list[BookieRegistration]:
        """Return the bookies that the store shows as writable. One that just died is among them for a while."""
        now = self.world.now
        return [
            BookieRegistration(bookie.name, "")
            for bookie in self.bookies.values()
            if not bookie.is_full
            and now >= bookie.unregistered_until
            and (bookie.is_up or now < bookie.registered_until)
        ]

    def next_runner_number(self) -> int:
        """Return a number that no other runner of the run has."""
        self._runners += 1
        return self._runners


class SimulatedRunner:
    """The effect runner of one core of one process. ``report`` gets the effects that are for the core's owner."""

    def __init__(self, cluster: Cluster, process: Process, core: Any, report: Callable[[Effect], None]) -> None:
        self.cluster = cluster
        self.process = process
        self.core = core
        self.report = report
        self.author = Author(process.name, type(core).__name__, cluster.next_runner_number())
        self.is_over = False  # set by the owner: no more ticks
        self._random: Random | None = None
        cluster.world.after(TICK_MS, self._tick, process)

    def run(self, effects: list[Effect]) -> None:
        """Run effects in order."""
        for effect in effects:
            handler = _HANDLERS.get(type(effect))
            if handler is None:
                self.report(effect)
            else:
                handler(self, effect)

    def _tick(self) -> None:
        if not self.is_over:
            self.run(self.core.tick(self._now))
            self.cluster.world.after(TICK_MS, self._tick, self.process)

    @property
    def _now(self) -> int:
        return self.cluster.world.now + self.process.clock_ahead_ms

    def _draw(self) -> float:
        if self._random is None:
            self._random = self.cluster.world.stream(str(self.author))
        return self._random.random()

    # -- bookies

    def _ask(
        self,
        bookie_id: str,
        effect: Effect,
        request: Callable[[SimulatedBookie, Callable[..., None]], None],
        answer: Callable[..., list[Effect]],
        unknown: tuple[Any, ...],
    ) -> None:
        """Send a request. ``answer`` is called with the bookie's answer, perhaps late or twice, or with ``unknown``."""
        bookie = self.cluster.bookies[bookie_id]
        network, world = self.cluster.network, self.cluster.world
        kind, is_traced = type(effect).__name__, world.trace is not None
        is_heard = False

        def deliver(*words: Any) -> None:
            nonlocal is_heard
            is_heard = True
            if is_traced:
                world.note(self.author, "has from", bookie_id, Said(words), "to", Brief(effect))
            self.run(answer(*words, self._now))

        def reply(*words: Any) -> None:
            network.send(bookie, self.process, lambda: deliver(*words), kind)

        def arrive() -> None:
            if is_traced:
                world.note(bookie_id, "has from", self.author, Brief(effect))
            request(bookie, reply)

        def on_timeout() -> None:
            if not is_heard:
                self.run(answer(*unknown, self._now))

        if is_traced:
            world.note(self.author, "sends", bookie_id, Brief(effect))
        if not bookie.is_up and self._draw() < 0.5:  # connection refused
            world.after(1, on_timeout, self.process)
        else:
            network.send(self.process, bookie, arrive, kind)
            world.after(network.profile.request_timeout_ms, on_timeout, self.process)

    def _send_add(self, effect: SendAdd) -> None:
        self.cluster.on_send_add(self.author, effect)
        copy = Copy(effect.last_add_confirmed, effect.length, bytes(effect.payload))
        timeout_ms = self.cluster.network.profile.request_timeout_ms
        positions = {bookie_id: position for position, bookie_id in effect.targets}
        for position, bookie_id in effect.targets:
            if self.cluster.network.profile.ranges and not effect.recovery:
                request = (effect.entry_id, effect.epoch, positions)
                ranges = self.cluster.ranges(self.process, bookie_id)
                ranges.add(effect.ledger_id, effect.entry_id, copy, self, request, timeout_ms)
                continue
            self._ask(
                bookie_id,
                effect,
                lambda bookie, reply: bookie.add(effect.ledger_id, effect.entry_id, copy, effect.recovery, reply),
                lambda answer, now, p=position: self.core.on_add_answer(effect.entry_id, p, effect.epoch, answer, now),
                (Reply.UNKNOWN,),
            )

    def on_stored(self, bookie_id: str, tags: Sequence[AddRequest]) -> None:
        """Pass on that a bookie has stored these entries."""
        self.run(self.core.on_adds_stored(bookie_id, tags))

    def on_refused(self, bookie_id: str, tag: AddRequest, reply: Reply) -> None:
        """Pass on that a bookie has refused an entry, or has not answered."""
        entry_id, epoch, positions = tag
        self.run(self.core.on_add_answer(entry_id, positions[bookie_id], epoch, reply, self._now))

    def on_add_answer(self, bookie_id: str, tag: Any, answer: Any) -> None:
        """Do nothing: no answer here is a frame."""
        raise AssertionError("answers to single adds come through ``on_refused``")

    def _send_lac(self, effect: SendLac) -> None:
        self.cluster.world.count("explicit LAC sent")
        for bookie_id in effect.bookies:
            bookie = self.cluster.bookies[bookie_id]
            self.cluster.network.send(
                self.process,
                bookie,
                lambda bookie=bookie: bookie.write_lac(effect.ledger_id, effect.last_add_confirmed),  # type: ignore[misc]
                "SendLac",
            )

    def _read_lac(self, effect: ReadLac) -> None:
        for position, bookie_id in effect.targets:
            self._ask(
                bookie_id,
                effect,
                lambda bookie, reply: bookie.read_lac(effect.ledger_id, effect.fence, reply),
                lambda answer, lac, entry, now, p=position: self.core.on_lac_answer(p, answer, lac, entry, now),
                (Reply.UNKNOWN, -1, None),
            )

    def _read_entry(self, effect: ReadEntry) -> None:
        def deliver(position: int, bookie_id: str, answer: Reply, entry: LedgerEntry | None, now: int) -> list[Effect]:
            self.cluster.on_entry_answer(self.author, effect, bookie_id, answer)
            effects: list[Effect] = self.core.on_entry_answer(effect.entry_id, position, answer, entry, now)
            return effects

        for position, bookie_id in effect.targets:
            self._ask(
                bookie_id,
                effect,
                lambda bookie, reply: bookie.read_entry(effect.ledger_id, effect.entry_id, effect.fence, reply),
                partial(deliver, position, bookie_id),
                (Reply.UNKNOWN, None),
            )

    def _read_batch(self, effect: ReadBatch) -> None:
        self._ask(
            effect.bookie_id,
            effect,
            lambda bookie, reply: reply(
                *bookie.read_batch(effect.ledger_id, effect.first_entry_id, effect.last_entry_id)
            ),
            lambda answer, entries, now: self.core.on_batch_answer(effect.request, answer, entries, now),
            (Reply.UNKNOWN, []),
        )

    def _list_entries(self, effect: ListEntries) -> None:
        self._ask(
            effect.bookie_id,
            effect,
            lambda bookie, reply: bookie.list_entries(effect.ledger_id, reply),
            lambda answer, runs, now: self.core.on_entries_listed(effect.bookie_id, answer, runs, now),
            (Reply.UNKNOWN, ()),
        )

    def _send_copy(self, effect: SendCopy) -> None:
        entry = effect.entry
        copy = Copy(entry.last_add_confirmed, entry.length, bytes(entry.payload))
        self._ask(
            effect.bookie_id,
            effect,
            lambda bookie, reply: bookie.add(effect.ledger_id, entry.entry_id, copy, True, reply),
            lambda answer, now: self.core.on_copy_answer(entry.entry_id, effect.bookie_id, answer, now),
            (Reply.UNKNOWN,),
        )

    # -- metadata

    def _write_metadata(self, effect: WriteMetadata) -> None:
        store = self.cluster.store

        def answer(result: int | MetadataError) -> None:
            if isinstance(result, int):
                self.run(self.core.on_metadata_written(effect.request, result, self._now))
            elif isinstance(result, NoNodeError):
                self.run(self.core.on_metadata_missing(effect.request, self._now))
            else:
                assert isinstance(result, BadVersionError), result
                self.run(self.core.on_metadata_conflict(effect.request, self._now))

        def execute() -> int | MetadataError:
            return store.write_ledger(self.author, effect.record, effect.version)

        store.ask(self.process, execute, answer, lambda: self._metadata_unknown(effect.request))

    def _read_metadata(self, effect: ReadMetadata) -> None:
        store = self.cluster.store

        def answer(result: Any) -> None:
            if result is None:
                self.run(self.core.on_metadata_missing(effect.request, self._now))
            else:
                self.run(self.core.on_metadata_read(effect.request, result, self._now))

        store.ask(
            self.process,
            lambda: store.ledger(effect.ledger_id),
            answer,
            lambda: self._metadata_unknown(effect.request),
        )

    def _delete_metadata(self, effect: DeleteMetadata) -> None:
        store = self.cluster.store
        store.ask(
            self.process,
            lambda: store.delete_ledger(self.author, effect.ledger_id),
            lambda _: self.run(self.core.on_metadata_deleted(effect.request, self._now)),
            lambda: self._metadata_unknown(effect.request),
        )

    def _metadata_unknown(self, request: int) -> None:
        self.run(self.core.on_metadata_unknown(request, self._now))


_HANDLERS: dict[type[Any], Callable[[SimulatedRunner, Any], None]] = {
    SendAdd: SimulatedRunner._send_add,
    SendLac: SimulatedRunner._send_lac,
    ReadLac: SimulatedRunner._read_lac,
    ReadEntry: SimulatedRunner._read_entry,
    ReadBatch: SimulatedRunner._read_batch,
    ListEntries: SimulatedRunner._list_entries,
    SendCopy: SimulatedRunner._send_copy,
    WriteMetadata: SimulatedRunner._write_metadata,
    ReadMetadata: SimulatedRunner._read_metadata,
    DeleteMetadata: SimulatedRunner._delete_metadata,
}

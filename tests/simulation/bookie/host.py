"""A process with one bookie's real storage: the product's journal, caches, logs, checkpoints, upkeep and replay.

The product's threads are steps of the world's queue of events. The journal's thread takes a batch, writes and syncs it
in one step, and notifies its waiters in a later one. Helpers with one thread do their work at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.journal import journal as journal_module
from heliograph.actors.bookie.journal.files import JournalFiles
from heliograph.actors.bookie.journal.format import TAG_BYTES, batch_bytes_of
from heliograph.actors.bookie.journal.journal import Journal, JournalItem, JournalPorts
from heliograph.actors.bookie.recovery import opening, replay
from heliograph.actors.bookie.server.reads import EntryReads
from heliograph.actors.bookie.store import data_directory
from heliograph.actors.bookie.store import storage as storage_module
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.bookie.store.write_cache import WriteCache
from heliograph.actors.bookie.upkeep import checkpointer as checkpointer_module
from heliograph.actors.bookie.upkeep import gc as gc_module
from heliograph.actors.bookie.upkeep.checkpointer import Checkpointer
from heliograph.actors.bookie.upkeep.gc import GarbageCollector
from heliograph.actors.errors import BookieStorageError
from heliograph.metadata import paths
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.store import Stat
from tests.simulation.bookie.disk import Platter, SimulatedDisk, SimulatedFile
from tests.simulation.bookie.index import SimulatedIndex
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.world import Process, World

JOURNALS = (Path("/journal-1"), Path("/journal-2"))
DATA = (Path("/data-1"), Path("/data-2"))
CACHE_BYTES = 60_000
THREAD_MS_MAX = 30  # until a thread has done what it was given


class InlineExecutor:
    """A stand-in for a pool of one thread: what it is given is done at once."""

    def __init__(self, workers: int = 1, name: str = "") -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        """Do it, and return its outcome."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        """Do nothing."""


class SteppedJournal(Journal):
    """The product's journal, whose thread is a sequence of events."""

    def __init__(self, host: BookieHost, *arguments: Any) -> None:
        self._host = host
        super().__init__(*arguments)

    def start(self) -> None:
        self._idle = True
        self._host.after(self._seal_seconds * 1000, self._look_for_seal)

    def drain(self) -> None:
        """Commit what is queued, as the thread does before it ends."""
        while self._queue and not self._has_failed:
            self._step()

    def _wake_thread(self) -> None:
        self._idle = False
        self._host.after(self._host.random.randrange(self._host.sync_ms_max), self._step)

    def _look_for_seal(self) -> None:
        seconds = self._seconds_to_seal()
        if self._idle and seconds is not None and seconds <= 0 and not self._queue:
            self._idle = False
            self._step()
        self._host.after(self._seal_seconds * 1000, self._look_for_seal)

    def _step(self) -> None:
        """Commit one batch, as ``_run`` does in a loop."""
        if self._has_failed:
            return
        items, size = self._take_queue() if self._queue else ([], 0)
        if items or not self._is_sealed:
            try:
                error = self._commit(items, batch_bytes_of(len(items), size), is_on_loop=False)
            except BaseException as failure:
                self._has_failed = True
                self._ports.post(partial(self._ports.on_failure, failure))
                return
            if items:
                self._ports.post(partial(self._notify_now, items, error))
        self._host.after(self._host.random.randrange(self._host.sync_ms_max), self._go_on)

    def _commit(self, items: list[JournalItem], size: int, *, is_on_loop: bool) -> BookieStorageError | None:
        before = self.statistics.bytes_synced
        error = super()._commit(items, size, is_on_loop=is_on_loop)
        if error is None:
            length = self.statistics.bytes_synced - before
            cast(SimulatedFile, self._file).note_batch(max(self._offset - length, 0))
        return error

    def _go_on(self) -> None:
        if self._queue:
            self._step()
        else:
            self._idle = True


class ThreadedLoop(SimulatedLoop):
    """A loop whose executors do what they are given a moment later, one thing after the other."""

    def __init__(self, host: BookieHost) -> None:
        super().__init__(host.world, host)
        self._host = host

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future = self.create_future()

        def tell(outcome: Any, failure: Exception | None) -> None:
            if future.done():
                return  # the waiting task was cancelled
            if failure is None:
                future.set_result(outcome)
            else:
                future.set_exception(failure)

        def work() -> None:
            outcome, failure = None, None
            try:
                outcome = function(*arguments)
            except Exception as error:
                failure = error
            self._host.after(0, partial(tell, outcome, failure))

        self._host.after(self._host.random.randrange(THREAD_MS_MAX), work)
        return future


class LaterThreads(Executor):
    """Threads whose functions run a moment later on a loop."""

    running = 0  # as far as a bound on waiting reads goes

    def __init__(self, loop: ThreadedLoop) -> None:
        self._loop = loop

    def begin(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Begin a function, as ``ReadThreads.begin`` does."""
        return self._loop.run_in_executor(self, function)


class BookieHost(Process):
    """The process of the bookie, from one start to the next."""

    def __init__(self, world: World, random: Random, listed: set[int]) -> None:
        super().__init__("bookie")
        self.world = world
        self.random = random
        self.platter = Platter(world.stream("platter"))
        self.listed = listed  # ledgers that metadata has
        self.changes: list[str] = []  # directories whose lists were seen to have changed
        self._latest: dict[str, tuple[list[str], int]] = {}  # by directory: its list, and the number of the change
        journals, directories = random.choice(((1, 1), (1, 1), (2, 1), (1, 2), (2, 2)))
        self.sync_ms_max = random.choice((2, 2, 20))
        self.config = BookieConfig(
            "bookie",
            JOURNALS[:journals],
            DATA[:directories],
            journal_file_bytes=random.choice((16 << 10, 32 << 10, 64 << 10)),
            journal_seal_ms=random.choice((20, 100, 100_000)),
            journal_loop_sync_us=random.choice((0, 1_000)),
            single_write_bytes=random.choice((0, 400, 400, 2_000)),
            entry_log_bytes=random.choice((8 << 10, 40 << 10)),
            flush_interval_ms=random.choice((100, 400, 3_000)),
            minor_compaction_interval_ms=0,
            major_compaction_interval_ms=random.choice((0, 2_000)),
            compaction_headroom_bytes=0,
            read_cache_bytes=random.choice((0, 5_000)),
            read_ahead_bytes=random.choice((0, 3_000)),
        )
        self.on_dead: Callable[[BaseException], None] = lambda error: None
        self.trouble: Callable[[SimulatedDisk], None] = lambda disk: None  # called with the disk of each start
        self.is_up = False

    @property
    def is_damaged(self) -> bool:
        """Whether a file has a byte that went bad."""
        return any(inode.flips for inode in self.platter.names.values())

    # -- life

    def begin(self) -> None:
        """Start the process: open the storage and serve.

        Raises:
            BookieStorageError: the bookie refuses to start.
        """
        self.disk = SimulatedDisk(self.platter)
        self.trouble(self.disk)
        for directory in (*self.config.journal_directories, *self.config.data_directories):
            self.disk.make_directory(directory)
        self.restart()
        self.loop = ThreadedLoop(self)
        with self.loop.running():
            opened = opening.open_storage(cast(Any, self.disk), self.config)
            self.summary = opened.summary
            ports = JournalPorts(self._post, self._on_failure, self._soon)
            opening.start_journals(cast(Any, self.disk), opened, ports)
            self.storage: BookieStorage = opened.storage
            thread = cast(Any, LaterThreads(self.loop))
            self.reads = EntryReads(self.storage, thread)
            self.checkpointer = Checkpointer(self.storage, thread, self.config.flush_interval_ms, self._on_failure)
            self.checkpointer.start()
            self.gc = GarbageCollector(self.storage, thread, lambda: cast(Any, self), _recognise, self._on_failure)

    def kill(self) -> None:
        """End the process. What it wrote stays in the cache of the machine, unless the power went before."""
        if self.is_up:
            self.crash()
            self.loop.die()
            self.platter = self.disk.after_cut or self.platter

    def cut_power(self) -> None:
        """End the process, and lose what was not synced."""
        if self.is_up:
            self.disk.after_cut = self.disk.after_cut or self.platter.after_power_cut()
            self.kill()
        else:
            self.platter = self.platter.after_power_cut()

    def stop(self) -> None:
        """End the process in good order."""
        self.loop.die()
        with self.loop.running():
            for journal in self.storage.journals:
                cast(SteppedJournal, journal).drain()
            if not self.disk.is_poisoned and self.storage.has_changes:
                checkpoint = self.storage.begin_checkpoint()
                self.storage.flush_checkpoint(checkpoint, self.storage.gone_in(checkpoint))
                self.storage.finish_checkpoint()
                self.storage.recycle_journals(checkpoint.mark)
            self.storage.close(is_orderly=True)
        self.kill()

    # -- for the storage

    def after(self, milliseconds: float, action: Callable[[], Any]) -> None:
        """Let something happen to this process."""

        def act() -> None:
            with self.loop.running():
                action()

        self.world.after(int(milliseconds), act, self)

    def _post(self, call: Callable[[], None]) -> None:
        self.after(self.random.randrange(3), call)

    def _soon(self, call: Callable[[], None]) -> None:
        self.after(0, call)

    def _on_failure(self, error: BaseException) -> None:
        self.on_dead(error)

    # -- heliograph.metadata.store.MetadataStore, as far as garbage collection needs it

    async def exists(self, path: str) -> Stat | None:
        """Return the stat of a ledger or of a directory. Metadata did not come out of a backup."""
        await asyncio.sleep(0.001)
        if not path.startswith(paths.LEDGERS):
            return None
        if path.rsplit("/", 1)[1].startswith("L"):
            return Stat(1, 1, 0, 0, 0, 0, 0) if paths.ledger_id_of(path) in self.listed else None
        names = self._names_in(path)
        if self._latest.get(path, (None, 0))[0] != names:
            self._latest[path] = names, len(self.changes) + 1
            self.changes.append(path)
        return Stat(1, 1, 0, 0, 0, 0, len(names), self._latest[path][1]) if names else None

    async def children_from(self, path: str, start: str = "", limit: int = 0) -> list[str]:
        """Return a page of the names of ledgers."""
        await asyncio.sleep(0.001)
        return [name for name in self._names_in(path) if name >= start][:2]

    async def get(self, path: str) -> None:
        """Read a ledger's record, which is not looked at."""
        await asyncio.sleep(0.001)
        if paths.ledger_id_of(path) not in self.listed:
            raise NoNodeError(path)

    async def sync(self, path: str) -> None:
        """Wait a moment."""
        await asyncio.sleep(0.001)

    def _names_in(self, path: str) -> list[str]:
        found = sorted(paths.ledger(ledger_id) for ledger_id in self.listed)
        return [each.rsplit("/", 1)[1] for each in found if each.startswith(f"{path}/")]


async def _recognise(store: Any) -> None:
    """Know the store."""


class NoRounds:
    """A stand-in for what looks after ledgers in limbo, and after those that are placed elsewhere: there are none."""

    def __init__(self, *arguments: Any) -> None:
        pass

    async def round(self, store: Any, now: float) -> int:
        """Do nothing."""
        return 0


class Clock:
    """A stand-in for the module ``time``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """Return the seconds of the simulated clock."""
        return self._world.now / 1000

    perf_counter = monotonic


@contextmanager
def surroundings(host: BookieHost) -> Iterator[None]:
    """Put the stand-ins where the product makes threads, an index and a large cache, and reads the clock."""
    clock = Clock(host.world)

    def index(directory: Path, cache_bytes: int) -> SimulatedIndex:
        return SimulatedIndex(host.disk, directory)

    tags = host.world.stream("tags")
    files = partial(JournalFiles, new_tag=lambda: tags.randbytes(TAG_BYTES))
    replaced: list[tuple[Any, str, Any]] = [
        (opening, "JournalFiles", files),
        (opening, "Journal", partial(SteppedJournal, host)),
        (journal_module, "ThreadPoolExecutor", InlineExecutor),
        (journal_module, "time", clock),
        (replay, "ThreadPoolExecutor", InlineExecutor),
        (data_directory, "LocationIndex", index),
        (storage_module, "WriteCache", lambda size: WriteCache(CACHE_BYTES)),
        (checkpointer_module, "time", clock),
        (gc_module, "LimboExit", NoRounds),
        (gc_module, "Surplus", NoRounds),
    ]
    with ExitStack() as stack:
        for module, name, value in replaced:
            stack.enter_context(patch.object(module, name, value))
        yield

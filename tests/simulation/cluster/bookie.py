"""A simulated bookie: the real fencing core over a simulated journal, index and disk.

When the bookie crashes, a prefix of what was written and not synced survives; the seed decides its length. The journal
is trimmed up to the mark, once the index holds its records. A lost disk comes back empty, with every ledger that names
the bookie in metadata fenced and in limbo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from heliograph.actors.bookie.store.fencing import Fence, FenceEffect
from heliograph.actors.bookie.upkeep.limbo import is_complete, owed
from heliograph.actors.ledger.effects import LedgerEntry, Reply
from heliograph.metadata.model import LedgerMetadata, LedgerState
from tests.simulation.cluster.disk import Copy, Image, Record
from tests.simulation.world import Action, Process, World

SESSION_MS = 1_000
FLUSH_MS_MAX = 50
UNSYNCED = ("fence", "entry", "recovered entry")

LacReply = Callable[[Reply, int, LedgerEntry | None], None]
EntryReply = Callable[[Reply, LedgerEntry | None], None]
ListReply = Callable[[Reply, tuple[tuple[int, int], ...]], None]


class SimulatedBookie(Process):
    """One storage node."""

    def __init__(self, world: World, name: str, sync_ms_max: int) -> None:
        super().__init__(name)
        self.world = world
        self.random = world.stream(name)
        self.disk = Image()
        self.memory = Image()
        self.sync_ms_max = sync_ms_max
        self.is_full = False
        self.fails_next_sync = False
        self.is_stuffed = False  # its disk is full: not even an entry of a recovery fits
        self.was_lost = False
        self.damaged: set[tuple[int, int]] = set()  # entries that a fault damaged here
        self.on_unsynced: dict[str, Action] = {}  # one of UNSYNCED -> what happens when one is not synced yet
        self.registered_until = 0  # its session outlives the process for a while
        self.unregistered_until = 0  # it lost its session and goes on
        self.ever_acked: set[tuple[int, int]] = set()  # for the checkers
        self.promised_fences: set[int] = set()
        self.collected: set[int] = set()
        self._fences: dict[int, Fence] = {}
        self._pending: list[tuple[Record | None, Action, Action]] = []  # record, when durable, when failed
        self._sync_is_due = False
        self._known_lacs: dict[int, int] = {}

    # -- requests

    def add(
        self, ledger_id: int, entry_id: int, copy: Copy, is_recovery: bool, answer: Callable[[Reply], None]
    ) -> None:
        """Store one entry, and answer when it is durable."""
        if not self._fence(ledger_id).permits_add(is_recovery=is_recovery):
            answer(Reply.FENCED)
            return
        if self.is_stuffed or (self.is_full and not is_recovery):
            self.world.count("entry of a recovery or repair refused by a full disk", is_recovery)
            answer(Reply.READ_ONLY)
            return
        if not is_recovery and ledger_id in self.promised_fences:  # I4
            self.world.alarms.append(("I4", f"{self.name} took {ledger_id}:{entry_id} after a fence was promised"))
        self.memory.absorb([Record(ledger_id, entry_id, copy)])

        def durable() -> None:
            self.ever_acked.add((ledger_id, entry_id))
            answer(Reply.OK)

        what = "recovered entry" if is_recovery else "entry"
        self._journal(Record(ledger_id, entry_id, copy), durable, lambda: answer(Reply.UNKNOWN), what)
        self._on_lac(ledger_id, copy.lac)

    def write_lac(self, ledger_id: int, lac: int) -> Reply:
        """Store an explicit LAC, unless the ledger is fenced."""
        if not self._fence(ledger_id).permits_add(is_recovery=False):
            return Reply.FENCED
        self.memory.absorb([Record(ledger_id, lac=lac)])
        self._journal(Record(ledger_id, lac=lac), _nothing, _nothing)
        self._on_lac(ledger_id, lac)
        return Reply.OK

    def read_entry(self, ledger_id: int, entry_id: int, is_fencing: bool, answer: EntryReply) -> None:
        """Read one entry, and fence the ledger before if asked to."""
        self._after_fence(ledger_id, is_fencing, lambda: self._read(ledger_id, entry_id, answer), answer)

    def read_lac(self, ledger_id: int, is_fencing: bool, answer: LacReply) -> None:
        """Answer with the highest LAC known, and fence the ledger before if asked to."""
        self._after_fence(
            ledger_id, is_fencing, lambda: self._lac(ledger_id, answer), lambda reply, _: answer(reply, -1, None)
        )

    def read_batch(self, ledger_id: int, first: int, last: int) -> tuple[Reply, list[LedgerEntry]]:
        """Return consecutive entries."""
        found: list[LedgerEntry] = []
        for entry_id in range(first, last + 1):
            copy = self.memory.index.get((ledger_id, entry_id))
            if copy is None or copy.is_damaged:
                if found:
                    break
                return (self._negative(ledger_id, entry_id) if copy is None else Reply.DAMAGED), []
            found.append(LedgerEntry(entry_id, copy.payload, copy.length, copy.lac))
        return Reply.OK, found

    def list_entries(self, ledger_id: int, answer: ListReply) -> None:
        """Answer with sorted runs of the entries stored, damaged or not, once all of them are durable."""
        ids = sorted(e for lid, e in self.memory.index if lid == ledger_id)
        runs: list[tuple[int, int]] = []
        for entry_id in ids:
            if runs and runs[-1][1] == entry_id - 1:
                runs[-1] = (runs[-1][0], entry_id)
            else:
                runs.append((entry_id, entry_id))
        is_known = bool(ids) or ledger_id in self.memory.limbo  # what is stored now is known, also in limbo
        reply = Reply.OK if is_known else Reply.ABSENT
        self._journal(None, lambda: answer(reply, tuple(runs)), lambda: answer(Reply.UNKNOWN, ()))

    # -- the disk

    def sync(self) -> None:
        """Make everything pending durable, then answer. A failed sync ends the process."""
        self._sync_is_due = False
        if self.fails_next_sync:
            self.fails_next_sync = False
            self.world.count("sync failed")
            for _, _, when_failed in list(self._pending):
                when_failed()
            self.crash()  # some of it may be on disk
            self.world.after(300, self._restart_if_down)
            return
        pending, self._pending = self._pending, []
        records = [record for record, _, _ in pending if record is not None]
        self.disk.append(records)
        if self.damaged:
            self.memory.absorb(records)  # this repairs an entry that was damaged since it came
        for _, when_durable, _ in pending:
            when_durable()

    def checkpoint(self) -> None:
        """Flush what the journal holds now. The mark moves when the flush is on disk."""
        records = list(self.disk.journal)
        mark, limbo = self.disk.mark + len(records), set(self.memory.limbo)
        delay_ms = self.random.randrange(FLUSH_MS_MAX)
        self.world.after(delay_ms, lambda: self.finish_checkpoint(records, mark, limbo), self)

    def flush(self) -> None:
        """Do a whole checkpoint at once."""
        records = list(self.disk.journal)
        limbo = set(self.memory.limbo if self.is_up else self.disk.limbo)
        self.finish_checkpoint(records, self.disk.mark + len(records), limbo)

    def finish_checkpoint(self, records: list[Record], mark: int, limbo: set[int]) -> None:
        """Trim the journal up to the mark: the flush is on disk."""
        self.disk.absorb_journal(records, mark - len(records))
        self.disk.limbo &= limbo
        self.disk.move_mark(mark)

    def known_ledgers(self) -> set[int]:
        """Return the ledgers that a round of garbage collection starts from."""
        return self.memory.ledgers()

    def collect(self, gone: Iterable[int]) -> None:
        """Delete the data of ledgers that metadata says are gone. Their fences stay (I4)."""
        dropped = set(gone)
        self.collected |= dropped
        self.memory.drop(dropped)
        self.disk.drop(dropped)
        self.ever_acked = {key for key in self.ever_acked if key[0] not in dropped}
        self._known_lacs.clear()

    def crash(self) -> None:
        """Crash: a prefix of what was written and not synced survives."""
        super().crash()
        self.registered_until = self.world.now + SESSION_MS
        survivors = self.random.randint(0, len(self._pending))
        self.disk.append(record for record, _, _ in self._pending[:survivors] if record is not None)
        self._pending.clear()
        self._sync_is_due = False

    def restart(self) -> None:
        """Replay the journal over the index."""
        super().restart()
        self.memory = self.disk.replayed()
        self._fences = {}
        self._known_lacs.clear()
        self.restore_fences()

    def restore_fences(self) -> None:
        """Restore the fences found on disk."""
        for ledger_id in self.memory.fences:
            self._fence(ledger_id).restore()

    def lose_disk(self, named_in: Iterable[LedgerMetadata], last_ledger_id: int) -> None:
        """Lose all data, fences too.

        Args:
            named_in: the ledgers that name this bookie in metadata.
            last_ledger_id: the greatest ledger id that was given out.
        """
        self.lose_journal(named_in, last_ledger_id)
        self.disk = Image(limbo=self.disk.limbo, fences=self.disk.fences)

    def lose_journal(self, named_in: Iterable[LedgerMetadata], last_ledger_id: int) -> None:
        """Lose what was not flushed. The arguments are those of ``lose_disk``."""
        self.crash()
        self.was_lost = True
        before = set(range(1, last_ledger_id + 1))
        unfenced = {  # no recovery of these has begun
            ledger.ledger_id
            for ledger in named_in
            if ledger.state is LedgerState.OPEN and self.name not in ledger.last_segment.bookies
        }
        self.disk.abandon_journal()
        self.disk.limbo |= before
        self.disk.fences |= before - unfenced

    def flip_bit(self, random: Random) -> bool:
        """Damage one stored entry."""
        self.flush()
        keys = sorted(key for key, copy in self.disk.index.items() if not copy.is_damaged)
        if not keys:
            return False
        self.damage(random.choice(keys))
        return True

    def damage(self, key: tuple[int, int]) -> None:
        """Damage a stored entry."""
        self.damaged.add(key)
        self.disk.index[key] = replace(self.disk.index[key], is_damaged=True)
        if self.is_up and key in self.memory.index:
            self.memory.index[key] = self.disk.index[key]
        self._known_lacs.clear()

    def leave_limbo(self, ledgers: Iterable[LedgerMetadata]) -> int:
        """Take ledgers that are complete on disk out of limbo. Return how many. Durable with the next checkpoint."""
        left = 0
        for ledger in ledgers:
            ledger_id = ledger.ledger_id
            if ledger_id not in self.memory.limbo or not ledger.is_closed or not owed(ledger, self.name):
                continue
            if is_complete(ledger, self.name, [(e, e) for lid, e in self.disk.index if lid == ledger_id]):
                left += 1
                self.memory.limbo.discard(ledger_id)
                # Nobody needs what it acknowledged beyond the end, or at positions that other bookies have now.
                is_kept = {
                    entry_id
                    for first, last, place, ensemble, quorum in owed(ledger, self.name)
                    for entry_id in range(first, last + 1)
                    if (place - entry_id) % ensemble < quorum
                }
                self.ever_acked = {key for key in self.ever_acked if key[0] != ledger_id or key[1] in is_kept}
        return left

    @property
    def has_unsynced(self) -> bool:
        """Whether a crash now could lose something."""
        return bool(self._pending)

    # -- internals

    def _restart_if_down(self) -> None:
        if not self.is_up:
            self.restart()

    def _fence(self, ledger_id: int) -> Fence:
        fence = self._fences.get(ledger_id)
        if fence is None:
            fence = self._fences[ledger_id] = Fence()
        return fence

    def _after_fence(self, ledger_id: int, is_fencing: bool, answer: Action, fail: EntryReply) -> None:
        if not is_fencing:
            answer()
            return

        def fenced() -> None:
            self.promised_fences.add(ledger_id)
            answer()

        waiter = (fenced, lambda: fail(Reply.UNKNOWN, None))
        effect = self._fence(ledger_id).request(waiter)
        if effect is FenceEffect.ANSWER:
            fenced()
        elif effect is FenceEffect.WRITE:
            self.memory.fences.add(ledger_id)
            self._journal(
                Record(ledger_id, is_fence=True),
                lambda: self._tell(self._fence(ledger_id).written(), 0),
                lambda: self._tell(self._fence(ledger_id).failed(), 1),
                "fence",
            )

    def _tell(self, waiters: list[tuple[Action, Action]], which: int) -> None:
        for waiter in waiters:
            waiter[which]()

    def _read(self, ledger_id: int, entry_id: int, answer: EntryReply) -> None:
        copy = self.memory.index.get((ledger_id, entry_id))
        if copy is None:
            answer(self._negative(ledger_id, entry_id), None)
        elif copy.is_damaged:
            answer(Reply.DAMAGED, None)
        else:
            answer(Reply.OK, LedgerEntry(entry_id, copy.payload, copy.length, copy.lac))

    def _lac(self, ledger_id: int, answer: LacReply) -> None:
        if ledger_id in self.memory.limbo:
            answer(Reply.UNKNOWN, -1, None)
            return
        last = max((e for lid, e in self.memory.index if lid == ledger_id), default=-1)
        lac = self._lac_of(ledger_id)
        if last < 0:
            answer(Reply.ABSENT if lac < 0 else Reply.OK, lac, None)
            return
        copy = self.memory.index[ledger_id, last]
        if copy.is_damaged:
            answer(Reply.OK, lac, None)
        else:
            answer(Reply.OK, lac, LedgerEntry(last, copy.payload, copy.length, copy.lac))

    def _lac_of(self, ledger_id: int) -> int:
        """Return the highest LAC known, from undamaged entries and explicit LACs."""
        known = self._known_lacs.get(ledger_id)
        if known is None:
            memory = self.memory
            stored = (c.lac for (lid, _), c in memory.index.items() if lid == ledger_id and not c.is_damaged)
            known = self._known_lacs[ledger_id] = max(memory.lacs.get(ledger_id, -1), max(stored, default=-1))
        return known

    def _on_lac(self, ledger_id: int, lac: int) -> None:
        """Remember the LAC that came in if it is the greatest."""
        self._known_lacs[ledger_id] = max(lac, self._lac_of(ledger_id))

    def _negative(self, ledger_id: int, entry_id: int) -> Reply:
        if ledger_id in self.memory.limbo:
            return Reply.UNKNOWN  # I6
        if (ledger_id, entry_id) in self.ever_acked and ledger_id not in self.collected:
            self.world.alarms.append(("I6", f"{self.name} denied {ledger_id}:{entry_id}, which it acknowledged"))
        return Reply.ABSENT

    def _journal(self, record: Record | None, when_durable: Action, when_failed: Action, what: str = "") -> None:
        self._pending.append((record, when_durable, when_failed))
        if what in self.on_unsynced:
            self.on_unsynced.pop(what)()
        if not self._sync_is_due:
            self._sync_is_due = True
            self.world.after(self.random.randrange(self.sync_ms_max), self.sync, self)


def _nothing() -> None:
    """Do nothing: nobody waits for this record."""

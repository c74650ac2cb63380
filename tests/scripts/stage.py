"""The language of ledger scripts, and the stage that runs them with the real cores.

A script has one command a line, then ``---``, then the trace that the commands must give. ``#`` starts a comment.
Nothing happens by itself: a message stays under way until a command delivers or drops it.

    cluster B... [e=3] [w=3] [a=2] [delay=0] [lac=0] [wait=10000] [room=10000] [vacant=0]
                        bookies; ledger 1 on the first E of them, its writer ``w``; times in ms, room in entries;
                        vacant: so many of the E, the last ones, were not registered when the ledger was created
    segments K:B,B,B... [state=open] [last=-1] [length=0]
                        replace the ledger's record (before anything else is done with it)
    store B,B... N [lac=N-1] [length=N+1]      put a copy on bookies; payloads are one byte
    append [count]      the writer accepts adds
    close [who]         the writer closes the ledger
    recover WHO [reads=16] | read WHO FIRST LAST | lac WHO | repair WHO MISSING,.. [away=B,..] | check WHO |
    delete WHO | sync WHO
                        start another core under the name WHO (reads: entries read at once; away: bookies to be emptied;
                        sync: a recovery that starts from the record as of now, without acting yet: ``begin WHO`` starts
                        it). Reads share what they see of bookies.
    begin WHO           start what ``sync`` prepared
    deliver [TAG...]    let messages with all these tags arrive, and their answers too, until none is left;
                        tags: sender, target (a bookie or ``store``), kind (add copy lac fence read-lac read batch
                        list write read-record delete), number
    arrive [TAG...]     let requests arrive; their answers stay under way
    drop [TAG...]       lose the message, or its answer if it arrived: the sender is told that there is none
    repeat [TAG...]     let requests arrive once more
    crash B / start B   a crashed bookie does not answer; its copies are there when it starts
    readonly B | limbo B | damage B N | forget B N     change a bookie
    register B / unregister B                           the writer's chooser may pick it or not; the writer is told
    tick MS             let time pass; all cores are told
    edit K POSITION B   let another client change a position of a segment in the store
    status              show the writer, the store, the messages under way
    bookie B...         show what bookies store
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from heliograph.actors.ledger.deletion import DeletionCore
from heliograph.actors.ledger.effects import Effect, LedgerEntry
from heliograph.actors.ledger.inventory import CheckCore
from heliograph.actors.ledger.lac import LacReadCore
from heliograph.actors.ledger.limits import ReaderLimits, RecoveryLimits, WriterLimits
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.reader import ReadCore
from heliograph.actors.ledger.recovery import RecoveryCore
from heliograph.actors.ledger.repair.core import RepairCore
from heliograph.actors.ledger.schedule import vacancy_at
from heliograph.actors.ledger.writer import WriterCore
from heliograph.base.errors import HeliographError
from heliograph.metadata.model import LedgerMetadata, LedgerState, Segment
from tests.scripts.bookies import ScriptBookie, ScriptChooser, ScriptStore
from tests.scripts.messages import STORE, Message, messages_of
from tests.scripts.trace import describe, describe_record, describe_result

STEPS_MAX = 10_000
LEDGER_ID = 1


class Stage:
    """Runs one script."""

    def __init__(self) -> None:
        self.now = 0
        self.lines: list[str] = []
        self.bookies: dict[str, ScriptBookie] = {}
        self.chooser = ScriptChooser()
        self.health = BookieHealth()
        self.cores: dict[str, Any] = {}
        self.under_way: list[Message] = []
        self._writer_limits = WriterLimits()
        self._prepared: dict[str, RecoveryCore] = {}

    def play(self, commands: str) -> str:
        """Return the trace of some commands."""
        for line in commands.splitlines():
            words = line.partition("#")[0].split()
            if words:
                self.lines.append(f"> {' '.join(words)}")
                command: Callable[..., None] = getattr(self, f"do_{words[0]}")
                options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
                command(*[word for word in words[1:] if "=" not in word], **options)
        return "\n".join(self.lines) + "\n"

    # -- set-up

    def do_cluster(
        self,
        *names: str,
        e: str = "3",
        w: str = "3",
        a: str = "2",
        delay: str = "0",
        lac: str = "0",
        wait: str = "10000",
        room: str = "10000",
        vacant: str = "0",
    ) -> None:
        self.bookies = {name: ScriptBookie(name) for name in names}
        first, end = int(e) - int(vacant), int(e)
        self.chooser.registered = [*names[:first], *names[end:]]
        segment = Segment(0, (*names[:first], *map(vacancy_at, range(first, end))))
        self.store = ScriptStore(LedgerMetadata(LEDGER_ID, int(e), int(w), int(a), (segment,)))
        self._writer_limits = WriterLimits(
            in_flight_entries_max=int(room),
            ensemble_change_delay_ms=int(delay),
            explicit_lac_interval_ms=int(lac),
            quorum_wait_ms=int(wait),
        )
        self.cores["w"] = WriterCore(self.store.versioned, self.chooser, self._writer_limits)

    def do_segments(self, *segments: str, state: str = "open", last: str = "-1", length: str = "0") -> None:
        assert self.store.record is not None
        parsed = [(key, names.split(",")) for key, names in (segment.split(":") for segment in segments)]
        self.store.record = replace(
            self.store.record,
            segments=tuple(Segment(int(key), tuple(names)) for key, names in parsed),
            state=LedgerState(state),
            last_entry_id=int(last),
            length=int(length),
        )
        del self.cores["w"]  # it would not know the new record

    def do_store(self, names: str, number: str, lac: str | None = None, length: str | None = None) -> None:
        entry_id = int(number)
        known = entry_id - 1 if lac is None else int(lac)
        entry = LedgerEntry(entry_id, b"x", entry_id + 1 if length is None else int(length), known)
        for name in names.split(","):
            self.bookies[name].entries[entry_id] = entry

    # -- cores

    def do_append(self, count: str = "1") -> None:
        for _ in range(int(count)):
            if not self.cores["w"].has_room(1):
                self.lines.append("w has no room")
                return
            try:
                self._run("w", [self.cores["w"].add(b"x", self.now)])
            except HeliographError as error:
                self.lines.append(f"w refuses: {type(error).__name__}")
                return

    def do_close(self, who: str = "w") -> None:
        self._run(who, self.cores[who].close(self.now))

    def do_recover(self, who: str, reads: str = "16") -> None:
        self._start(who, RecoveryCore(self.store.versioned, self.chooser, RecoveryLimits(reads_max=int(reads))))

    def do_sync(self, who: str) -> None:
        self._prepared[who] = RecoveryCore(self.store.versioned, self.chooser)

    def do_begin(self, who: str) -> None:
        self._start(who, self._prepared.pop(who))

    def do_read(self, who: str, first: str, last: str) -> None:
        record = self.store.versioned.record
        limits = ReaderLimits(speculative_ms=100)
        self._start(who, ReadCore(record, int(first), int(last), 1 << 20, self.health, limits))

    def do_lac(self, who: str) -> None:
        self._start(who, LacReadCore(self.store.versioned.record))

    def do_repair(self, who: str, missing: str = "", away: str = "") -> None:
        lost, away_from, alive = missing.split(","), away.split(","), list(self.chooser.registered)
        core = RepairCore(
            self.store.versioned,
            [bookie_id for bookie_id in lost if bookie_id],
            alive,
            self.chooser,
            BookieHealth(),
            away_from=[bookie_id for bookie_id in away_from if bookie_id],
        )
        self._start(who, core)

    def do_check(self, who: str) -> None:
        self._start(who, CheckCore(self.store.versioned.record))

    def do_delete(self, who: str) -> None:
        self._start(who, DeletionCore(LEDGER_ID))

    # -- messages

    def do_deliver(self, *tags: str) -> None:
        for _ in range(STEPS_MAX):
            message = next((m for m in self.under_way if m.tags.issuperset(tags)), None)
            if message is None:
                return
            self._arrive(message)
            self._answer(message, message.result)
        raise AssertionError("messages without end")

    def do_arrive(self, *tags: str) -> None:
        for message in [m for m in self.under_way if m.tags.issuperset(tags)]:
            self._arrive(message)

    def do_drop(self, *tags: str) -> None:
        for message in [m for m in self.under_way if m.tags.issuperset(tags)]:
            self._answer(message, message.unknown)

    def do_repeat(self, *tags: str) -> None:
        for message in [m for m in self.under_way if m.tags.issuperset(tags)]:
            message.at_target()

    # -- bookies, time, the store

    def do_crash(self, name: str) -> None:
        self.bookies[name].is_up = False

    def do_start(self, name: str) -> None:
        self.bookies[name].is_up = True

    def do_readonly(self, name: str) -> None:
        self.bookies[name].is_readonly = True

    def do_limbo(self, name: str) -> None:
        self.bookies[name].in_limbo = True

    def do_damage(self, name: str, number: str) -> None:
        self.bookies[name].damaged.add(int(number))

    def do_forget(self, name: str, number: str) -> None:
        del self.bookies[name].entries[int(number)]

    def do_register(self, name: str) -> None:
        self.chooser.registered.append(name)
        self._run("w", self.cores["w"].on_bookies_changed(self.now))

    def do_unregister(self, *names: str) -> None:
        for name in names:
            self.chooser.registered.remove(name)
        if "w" in self.cores:
            self._run("w", self.cores["w"].on_bookies_changed(self.now))

    def do_tick(self, milliseconds: str) -> None:
        self.now += int(milliseconds)
        for name, core in list(self.cores.items()):
            self._run(name, core.tick(self.now))

    def do_edit(self, key: str, position: str, bookie: str) -> None:
        record, version = self.store.versioned.record, self.store.version
        segments = list(record.segments)
        index = next(i for i, segment in enumerate(segments) if segment.first_entry_id == int(key))
        names = list(segments[index].bookies)
        names[int(position)] = bookie
        segments[index] = Segment(int(key), tuple(names))
        self.store.write(replace(record, segments=tuple(segments)), version)

    def do_status(self) -> None:
        writer: WriterCore | None = self.cores.get("w")
        if writer is not None:
            changing = " changing" if writer._replacing else ""
            failed = f" failed={','.join(writer.failed_bookies)}" if writer.failed_bookies else ""
            self.lines.append(
                f"w is {writer.state.value} lac={writer.last_add_confirmed} lap={writer.last_add_pushed} "
                f"held={writer.entries_held}{changing}{failed}"
            )
        record = self.store.record
        self.lines.append(
            "store is empty" if record is None else f"store v{self.store.version} {describe_record(record)}"
        )
        for message in self.under_way:
            self.lines.append(f"under way: {message.sender} {message.what} {message.target}")

    def do_bookie(self, *names: str) -> None:
        for name in names:
            bookie = self.bookies[name]
            fenced = " fenced" if bookie.is_fenced else ""
            stored = " ".join(str(entry_id) for entry_id in sorted(bookie.entries)) or "nothing"
            self.lines.append(f"{name}{fenced} lac={bookie.last_add_confirmed} stores {stored}")

    # -- internals

    def _start(self, who: str, core: Any) -> None:
        assert who not in self.cores, "a name is used once"
        self.cores[who] = core
        self._run(who, core.start(self.now))

    def _run(self, who: str, effects: list[Effect]) -> None:
        for effect in effects:
            self.lines.append(f"{who} {describe(effect)}")
            core = self.cores[who]
            self.under_way += messages_of(who, core, effect, self.bookies, self.store, lambda: self.now)

    def _arrive(self, message: Message) -> None:
        if message.has_arrived:
            return
        message.has_arrived = True
        is_up = message.target == STORE or self.bookies[message.target].is_up
        message.result = message.at_target() if is_up else message.unknown

    def _answer(self, message: Message, result: Any) -> None:
        self.under_way.remove(message)
        self.lines.append(f"  {message.target} to {message.sender}: {message.what} {describe_result(result)}")
        self._run(message.sender, message.on_answer(result))

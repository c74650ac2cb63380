"""Sabotages of paths that many requests share. Each must fail the check that stands beside it in the table.

Rules of the replication protocol have mutants of their own, which the simulator catches (``tests/simulation/mutants``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutine
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.sabotage import sabotaged
from tests.unit.bookie import test_receiving as receiving
from tests.unit.bookie import test_shared_paths as shared
from tests.unit.bookie.journal import test_tags as tags
from tests.unit.cluster.operator import test_delayed_start as delayed
from tests.unit.cluster.operator import test_leaving as leaving
from tests.unit.wire import test_lacs as lacs
from tests.unit.wire import test_pending as pending
from tests.unit.wire import test_receiving as answers

Check = Callable[[Path, pytest.MonkeyPatch], Any]
A = "heliograph.actors."
RANGES, CONNECTION = f"{A}wire.ranges:PendingAdds", f"{A}bookie.server.connection:BookieClientConnection"
STORAGE, OPERATOR = f"{A}bookie.store.storage:BookieStorage", "heliograph.cluster.operator"
JOURNAL = f"{A}bookie.journal"


class Sabotage(NamedTuple):
    """A function, the text in it that is replaced, and the check that notices."""

    target: str
    old: str
    new: str
    check: Check


def of(test: Callable[..., Any], *arguments: Any) -> Check:
    """Return a check that needs nothing of pytest."""
    return lambda path, patch: test(*arguments)


def play(check: Check, path: Path, patch: pytest.MonkeyPatch) -> None:
    """Run a check to its end: one that is a coroutine function on a loop of its own."""
    running = check(path, patch)
    if iscoroutine(running):
        asyncio.run(running)


def adds(path: Path, patch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        pending.test_each_add_is_answered_once_by_its_own_answer(seed)


def small_bodies(path: Path, patch: pytest.MonkeyPatch) -> None:
    for size in (4, 1_000):
        shared.test_small_bodies_outlive_the_next_read(size, 2)


def departure(path: Path, patch: pytest.MonkeyPatch) -> None:
    leaving.test_a_bookie_departs_when_the_last_node_of_its_name_is_to_leave(["10.0.0.8"], False)


SABOTAGES = {
    "the tag is not in the checksum of a journal's record": Sabotage(
        f"{JOURNAL}.format:encode_batch",
        "pack(size, tag, sequence, batch, kind)",
        "pack(size, bytes(8), sequence, batch, kind)",
        of(tags.test_each_record_is_checksummed_with_its_tag),
    ),
    "the tag is not in the checksum of a batch's end": Sabotage(
        f"{JOURNAL}.format:encode_batch",
        "pack(size, tag, sequence, batch, _END)",
        "pack(size, bytes(8), sequence, batch, _END)",
        of(tags.test_each_record_is_checksummed_with_its_tag),
    ),
    "records of a journal count whatever their tag": Sabotage(
        f"{JOURNAL}.scan:_read_record",
        "found_tag != tag or",
        "",
        of(tags.test_records_of_an_earlier_use_are_not_seen_though_their_counters_go_on),
    ),
    "all uses of a journal's files have one tag": Sabotage(
        f"{JOURNAL}.files:JournalFiles.make_ready",
        "self._new_tag()",
        "bytes([255]) * 8",
        lambda path, patch: tags.test_each_use_of_a_file_has_a_tag_of_its_own(path),
    ),
    "the tag of a journal's file is its id": Sabotage(
        f"{JOURNAL}.files:JournalFiles.make_ready",
        "self._new_tag()",
        'self._next_id.to_bytes(8, "big")',
        lambda path, patch: tags.test_each_use_of_a_file_has_a_tag_of_its_own(path),
    ),
    "tags of one start are used again by the next": Sabotage(
        f"{JOURNAL}.files:JournalFiles.__init__",
        "new_tag or secret_tag",
        "new_tag or iter([bytes([255, at]) * 4 for at in range(100)]).__next__",
        lambda path, patch: tags.test_each_use_of_a_file_has_a_tag_of_its_own(path),
    ),
    "the answer for the first part of a frame acknowledges all of it": Sabotage(
        f"{RANGES}.take_run", "sent is None or sent.last != last", "sent is None", adds
    ),
    "an expired frame stays counted": Sabotage(f"{RANGES}.take_expired", "self.in_ranges -= sent.count", "pass", adds),
    "a frame is acknowledged as often as its answer comes": Sabotage(
        f"{RANGES}.take_run", "del self._ranges[first]", "self._ranges[first]", adds
    ),
    "the last add of a frame is not found by an answer of its own": Sabotage(
        f"{RANGES}._split_ranges", "sent.last >= first", "sent.last > first", adds
    ),
    "parts of a frame never expire": Sabotage(f"{RANGES}.take_expired", "if add[2] <= now", "if False", adds),
    "parts of a frame are lost with their connection": Sabotage(
        f"{RANGES}.take_all", "self._split.values()", "()", adds
    ),
    "a delayed broker keeps its predecessor's session": Sabotage(
        f"{A}broker.session:BrokerSessions.end_predecessor",
        "await end_predecessor(store, self._config.broker_id)",
        "pass",
        lambda path, patch: delayed.test_a_broker_ends_its_predecessors_session_before_the_pause(patch),
    ),
    "a bookie departs when one of its nodes leaves": Sabotage(
        f"{OPERATOR}.planning:_names_leaving_nodes",
        "leaving.issuperset(found)",
        "not leaving.isdisjoint(found)",
        departure,
    ),
    "small requests are kept as views of shared memory": Sabotage(
        f"{A}bookie.server.receiving:FrameReceiver.received",
        "self.held = bytes",
        "self.held = memoryview",
        small_bodies,
    ),
    "small requests are kept as views beside large ones": Sabotage(
        f"{A}bookie.server.receiving:FrameReceiver.received",
        "_held_in_place if stays else bytes",
        "memoryview",
        of(receiving.test_a_large_body_among_many_small_ones_is_copied),
    ),
    "small answers are kept as views of shared memory": Sabotage(
        f"{A}wire.receiving:AnswerReceiver.received",
        "memoryview(bytes(body)) if body else body",
        "body",
        of(answers.test_small_answers_outlive_the_next_read),
    ),
    "a journal's refusal of several adds is a receipt": Sabotage(
        f"{CONNECTION}.on_durable",
        "if error is None:",
        "if error is None or len(tokens) > 1:",
        of(shared.test_adds_that_a_journal_refused_are_refused_each, 3),
    ),
    "the cache takes refused entries for journaled ones": Sabotage(
        f"{CONNECTION}.on_durable",
        "self._storage.write_cache.note_refusal()",
        "pass",
        of(shared.test_adds_that_a_journal_refused_are_refused_each, 1),
    ),
    "a run names adds that came alone": Sabotage(
        f"{A}bookie.server.connection:_answers_to",
        "in tokens if is_ranged]",
        "in tokens]",
        of(shared.test_adds_that_are_durable_are_answered_once_each),
    ),
    "LACs of one frame are not journaled": Sabotage(
        f"{STORAGE}.take_lacs",
        "journal.append(items, sum([len(payload) for _, payload, _, _ in items]))",
        "pass",
        lambda path, patch: shared.test_lacs_of_one_frame_are_durable(path),
    ),
    "a LAC of a frame moves that of a fenced ledger": Sabotage(
        f"{STORAGE}._raise_lac",
        "if not state.fence.is_clear:",
        "if False:",
        lambda path, patch: shared.test_a_lac_of_a_frame_changes_no_fenced_ledger(path),
    ),
    "LACs of one turn are told again in the next": Sabotage(
        f"{A}wire.group:BookieGroup.end_lacs",
        "lacs, self._lacs = self._lacs, {}",
        "lacs = self._lacs",
        of(lacs.test_the_lacs_of_a_group_are_encoded_once),
    ),
    "a batch in one process stays in memory that is read into again": Sabotage(
        f"{A}bookie.server.in_process:InProcessReads._serve",
        'memoryview(b"".join(body.pieces))',
        'memoryview(body.pieces[0] if len(body.pieces) == 1 else b"".join(body.pieces))',
        of(shared.test_a_batch_outlives_the_memory_that_it_was_read_into),
    ),
    "batches in one process are for everyone": Sabotage(
        f"{A}wire.in_process:reads_at",
        "found.secret != secret",
        "False",
        of(shared.test_only_who_knows_the_secret_reads_past_the_socket),
    ),
}


@pytest.mark.parametrize("name", SABOTAGES)
def test_sabotage_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check holds for the product, and fails for the sabotage."""
    target, old, new, check = SABOTAGES[name]
    with pytest.MonkeyPatch.context() as patch:
        play(check, tmp_path / "sound", patch)
    with sabotaged(target, old, new), pytest.raises((AssertionError, LookupError, ValueError)):
        play(check, tmp_path / "sabotaged", monkeypatch)

"""Adds in ranges: those of one process to one bookie and of one moment travel in one frame.

What waits for its answer is kept by the product (``PendingAdds``): an entry that travels alone as an item of its own,
those of one frame as one record, which is taken apart when a part of it is answered. So are the frames of the answers.
They may be lost, late, repeated or split, and an entry of a frame may be damaged on its way, so that the bookie refuses
it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from heliograph.actors.ledger.effects import Reply
from heliograph.actors.wire.frame import BookieFrameDecoder
from heliograph.actors.wire.ranges import AddListener, PendingAdds, SentRange, Told, decode_run, encode_stored
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.disk import Copy
from tests.simulation.cluster.network import Network
from tests.simulation.world import Action, Process

KIND = "SendAdd"  # the name that faults use
REPEATED_MS_MAX = 3_000

Item = tuple[int, int, int, Copy]  # request id, ledger id, entry id, entry
OnRefused = Callable[[Any, str, Any, Reply | None], None]  # listener, bookie, tag, the bookie's answer or None


class AddRanges:
    """One direction of adds, and the answers to them.

    Args:
        run: runs an action in the source.
        on_refused: takes the answer to an entry that was not stored, or the lack of one.
    """

    def __init__(
        self,
        network: Network,
        source: Process,
        bookie: SimulatedBookie,
        run: Callable[[Action], None],
        on_refused: OnRefused,
    ) -> None:
        self._world = network.world
        self._network = network
        self._source = source
        self._bookie = bookie
        self._run = run
        self._on_refused = on_refused
        self._random = self._world.stream(f"{source.name}+{bookie.name}")
        self._damaged_share = self._random.choice((0.0, 0.0, 0.02))
        self._split_share = self._random.choice((0.0, 0.2))
        self._repeated_share = self._random.choice((0.0, 0.05))
        self._pending = PendingAdds()
        self._waiting: dict[int, tuple[AddListener, Any, int]] = {}  # what ``_pending`` should hold, with deadlines
        self._next_id = 1
        self._frame: list[Item] = []
        self._adds: list[Told] = []  # of the frame, as ``SentRange`` has them
        self._deadline_ms = 0  # of its last add, on the clock of the world
        self._stored: list[int] = []  # what the bookie's sync of this moment made durable
        self._stored_in = -1  # incarnation of the bookie then

    def add(self, ledger_id: int, entry_id: int, copy: Copy, listener: AddListener, tag: Any, timeout_ms: int) -> None:
        """Send an entry, with the others of this moment."""
        request_id, self._next_id = self._next_id, self._next_id + 1
        self._frame.append((request_id, ledger_id, entry_id, copy))
        if self._adds and self._adds[-1][0] is listener:
            self._adds[-1][1].append(tag)
        else:
            self._adds.append((listener, [tag]))
        self._deadline_ms = self._world.now + timeout_ms
        if len(self._frame) == 1:
            self._world.after(0, self._send, self._source)

    def _send(self) -> None:
        frame, self._frame = self._frame, []
        adds, self._adds = self._adds, []
        if len(frame) == 1:
            ((listener, (tag,)),) = adds
            self._pending[frame[0][0]] = (listener, tag, self._deadline_ms)
        else:
            self._pending.put_range(SentRange(frame[0][0], len(frame), adds, self._deadline_ms))
        each = [(listener, tag) for listener, tags in adds for tag in tags]
        for (request_id, _, _, _), (listener, tag) in zip(frame, each, strict=True):
            self._waiting[request_id] = (listener, tag, self._deadline_ms)
        self._world.after(max(0, self._deadline_ms - self._world.now), self._expire, self._source)
        if not self._bookie.is_up and self._random.random() < 0.5:  # connection refused
            for request_id, _, _, _ in frame:
                self._refused(request_id, None)
        else:
            self._world.count("adds sent as one frame", len(frame) > 1)
            self._network.send(self._source, self._bookie, lambda: self._arrive(frame), KIND)

    def _expire(self) -> None:
        """Answer the adds whose time is over."""
        now = self._world.now
        expired = self._pending.take_expired(now)
        self._check(expired, [request_id for request_id, (_, _, due) in self._waiting.items() if due <= now])
        for listener, tag in expired:
            self._tell_refused(listener, tag, None)
        self._world.count("adds of one frame expired", len(expired) > 1)

    def _arrive(self, frame: list[Item]) -> None:
        for request_id, ledger_id, entry_id, copy in frame:
            if self._random.random() < self._damaged_share and not self._network.is_healed:
                self._world.count("entry of a range damaged on its way")
                self._answer(request_id, Reply.UNKNOWN)
                continue
            self._bookie.add(ledger_id, entry_id, copy, False, partial(self._answer, request_id))

    def _answer(self, request_id: int, reply: Reply) -> None:
        """Answer an entry as the bookie does: a refused one at once, and stored ones together after their sync."""
        if reply is not Reply.OK:
            self._network.send(self._bookie, self._source, lambda: self._refused(request_id, reply), KIND)
            return
        if not self._stored or self._stored_in != self._bookie.incarnation:
            self._stored, self._stored_in = [], self._bookie.incarnation
            self._world.after(0, self._tell_stored, self._bookie)
        self._stored.append(request_id)

    def _tell_stored(self) -> None:
        request_ids, self._stored = self._stored, []
        for header, _ in BookieFrameDecoder().feed(encode_stored(request_ids)):
            first, last = decode_run(header)
            if first < last and self._random.random() < self._split_share:
                self._world.count("answer to a run split")
                middle = self._random.randrange(first, last)
                self._tell_run(first, middle)
                self._tell_run(middle + 1, last)
            else:
                self._tell_run(first, last)

    def _tell_run(self, first: int, last: int) -> None:
        self._network.send(self._bookie, self._source, lambda: self._heard(first, last), KIND)

    def _heard(self, first: int, last: int) -> None:
        world = self._world
        told = self._pending.take_run(first, last)
        each = [(listener, tag) for listener, tags in told for tag in tags]
        self._check(each, range(first, last + 1))
        for listener, tags in told:
            world.note(self._source.name, "has from", self._bookie.name, "stored", tags)
            self._run(partial(listener.on_stored, self._bookie.name, tags))
            if self._random.random() < self._repeated_share and not self._network.is_healed:
                world.count("answer to a run repeated late")
                again = partial(self._run, partial(listener.on_stored, self._bookie.name, tags))
                world.after(self._random.randrange(REPEATED_MS_MAX), again, self._source)

    def _refused(self, request_id: int, reply: Reply | None) -> None:
        add = self._pending.take(request_id)
        self._check([] if add is None else [add], [request_id])
        if add is not None:
            self._tell_refused(*add, reply)

    def _tell_refused(self, listener: Any, tag: Any, reply: Reply | None) -> None:
        self._run(lambda: self._on_refused(listener, self._bookie.name, tag, reply))

    def _check(self, answered: Sequence[tuple[AddListener, Any]], request_ids: Iterable[int]) -> None:
        """Check that these adds and no others were answered (I1), and that what waits is counted (I15)."""
        due = [found[:2] for request_id in request_ids if (found := self._waiting.pop(request_id, None))]
        wrong = [tag for listener, tag in answered if (listener, tag) not in due]
        if wrong or len(answered) != len(due):
            answers = f"{len(answered)} adds for {len(due)}"
            self._world.alarms.append(("I1", f"{self._bookie.name} answered {answers}, and not {wrong}"))
        counted = len(self._pending) + self._pending.in_ranges
        if counted != len(self._waiting):
            what = f"{counted} adds to {self._bookie.name} are counted, {len(self._waiting)} wait"
            self._world.alarms.append(("I15", what))

"""One cell: a call, a situation, a kind of program. It makes the situation and the call, and checks what holds then."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import heliograph
from tests.cluster.calls.gate import Gate
from tests.cluster.calls.program import RESULT_SECONDS_MAX, AsyncProgram, InterruptedByCallerError, Program, SyncProgram

SOON_SECONDS = 0.3  # until a situation changes while a call waits
AWAY_SECONDS = 0.7  # a broker that restarts
AT_ONCE_SECONDS_MAX = 25.0  # on a busy machine; the time limits of the calls are 30 s
SHORT_MS = 1_000  # the time limits of calls to a broker that stays away
RECEIVE_SECONDS = 30.0
MESSAGES = [b"m%d" % number for number in range(6)]
PRODUCER_CALLS = ("send", "send_async", "send_many", "flush", "close of a producer")
CONSUMER_CALLS = ("receive", "receive_many", "iteration", "acknowledge", "nack", "seek", "close of a consumer")
RECEIVING = ("receive", "receive_many", "iteration")
# The answer of the broker that a call waits for.
ANSWERS = {"acknowledge": "ACK_RESPONSE", "seek": "SUCCESS", "close of a consumer": "SUCCESS"}
INTERRUPTED = "interrupted"

at_exit: list[Callable[[], None]] = []  # run after the exit hooks of all modules that the program imports


class Cell:
    """What a cell has made so far, and what it knows.

    Args:
        url: A broker.
        say: Takes the outcome, once.
    """

    def __init__(self, call: str, situation: str, kind: str, url: str, say: Callable[[str], None]) -> None:
        self.call, self.situation, self._url, self._say = call, situation, url, say
        self.gate = Gate(url)  # before the first thread
        self.program: Program = SyncProgram() if kind == "sync" else AsyncProgram()
        self.topic = f"cell-{uuid.uuid4().hex}"
        self.options: dict[str, Any] = {"operation_timeout_ms": SHORT_MS} if situation == "server away" else {}
        self.is_producing = call in PRODUCER_CALLS
        self.first: Any = None  # the message that was received before the call
        self.earlier: list[Callable[[], Any]] = []  # calls of ``send`` under way when the call is made
        self.values: list[bytes] = []  # those of the earlier calls
        self.handle: Any = None
        self.began = time.monotonic()

    def run(self) -> None:
        """Make the situation and the call, and say what came of it; the process may end afterwards."""
        getattr(self, "in_" + self.situation.replace(" ", "_").replace("'", ""))()

    # -- situations

    def in_not_open(self) -> None:
        self._prepare(opens=False)
        self._finish(self._outcome())

    def in_opening(self) -> None:
        self._prepare(opens=False)
        self.gate.hold("PRODUCER_SUCCESS", "SUCCESS")
        before = 0 if self.is_producing else self.subscribed
        if self.is_producing:
            self._send_before()
        else:
            self.program.begin(self.handle.open)
        while not self.gate.has_seen("PRODUCER" if self.is_producing else "SUBSCRIBE", before + 1):
            self._nap(0.01)
        self._soon(self.gate.release)
        self._finish(self._outcome())

    def in_window_full(self) -> None:
        self._prepare(pending_messages_max=2, receiver_queue=2)
        self.gate.hold("SEND_RECEIPT", "ACK_RESPONSE")
        if self.is_producing:
            self._send_before(3)
        else:
            for message in self.rest:
                self.program.begin(partial(self.handle.ack, message))
        self._soon(self.gate.release)
        self._finish(self._outcome())

    def in_server_away(self) -> None:
        self._prepare(send_timeout_ms=SHORT_MS)
        if self.call in ("flush", "close of a producer"):
            self.gate.hold("SEND_RECEIPT")
            self._send_before()
        self.gate.leave()
        self._nap(0.05)
        if self.call == "iteration":  # it has no time limit
            self._soon(self.gate.come_back, 3 * SOON_SECONDS)
        outcome = self._outcome()
        if self.call == "iteration" and outcome == "done":
            outcome = "waits" if time.monotonic() - self.began >= 3 * SOON_SECONDS else "done too early"
        if self.call != "iteration":
            self.gate.release()
            self.gate.come_back()
        self._finish(outcome)

    def in_server_restarting(self) -> None:
        self._prepare()
        if self.call in ("flush", "close of a producer"):
            self.gate.hold("SEND_RECEIPT")
            self._send_before()
        self.gate.leave()
        self.gate.release()
        self._soon(self.gate.come_back, AWAY_SECONDS)
        self._finish(self._outcome())

    def in_interrupted_by_an_exception(self, *, cancels: bool = False) -> None:
        self._prepare(is_empty=self.call in RECEIVING)
        self.gate.hold(ANSWERS.get(self.call, "SEND_RECEIPT"))
        if self.call in ("flush", "close of a producer"):
            self._send_before()
        try:
            with self.program.interrupting(SOON_SECONDS, cancels=cancels):
                outcome = self._outcome(raises=True)
        except InterruptedByCallerError:
            outcome = INTERRUPTED
        took = time.monotonic() - self.began
        assert took < AT_ONCE_SECONDS_MAX, f"the call went on for {took:.1f} s after it was interrupted"
        self._finish(outcome)

    def in_cancelled(self) -> None:
        self.in_interrupted_by_an_exception(cancels=True)

    def in_after_exit_hooks(self) -> None:
        if isinstance(self.program, SyncProgram):
            self._prepare()
        elif not self.is_producing:
            self._publish()

        def use() -> None:
            if isinstance(self.program, AsyncProgram):  # it can have an event loop even now
                self._prepare(is_empty=True)
            self._say(self._outcome())
            self.gate.close()

        at_exit.append(use)

    def in_forked(self) -> None:
        self._prepare(type="shared", receiver_queue=1)
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if isinstance(self.program, AsyncProgram):
                    self.program = AsyncProgram()  # a child has no event loop that runs
                outcome = self._outcome()
                os.write(there, outcome.encode())
            finally:
                os._exit(0)
        os.close(there)
        outcome = os.read(here, 1 << 16).decode()
        os.waitpid(child, 0)
        if self.is_producing:
            assert self.program.run(lambda: self.handle.send(b"of the parent"))
            stored = self._stored()
            assert stored[-1] == b"of the parent"
            assert (b"x" in stored) == (outcome == "done" and self.call.startswith("send"))
        else:  # the parent has it, or was the one that the child's acknowledgement was for
            message = self.first or self.program.run(lambda: self.handle.receive(RECEIVE_SECONDS))
            self.program.run(lambda: self.handle.ack(message))
        self._say(outcome)

    def in_from_the_loops_own_thread(self) -> None:
        self._prepare()
        if isinstance(self.program, AsyncProgram):
            self._finish(self._outcome())
            return
        found: Future[str] = Future()
        self.gate.hold("SEND_RECEIPT")
        trigger = heliograph.connect(self.gate.url).producer(self.topic + "-other").open().send_async(b"x")
        on_loop = threading.get_ident()

        def called_back(_: object) -> None:
            assert threading.get_ident() != on_loop
            if self.call == "send_async":  # it does not wait, and waiting for its future there would
                future = self.handle.send_async(b"x")
                found.set_result("done")
                future.add_done_callback(lambda done: done.result())
            else:
                found.set_result(self._outcome())

        trigger.add_done_callback(called_back)
        self.gate.release()
        outcome = found.result(RESULT_SECONDS_MAX)
        self._finish(outcome)

    # -- steps

    def _prepare(
        self,
        *,
        opens: bool = True,
        is_empty: bool = False,
        receiver_queue: int = 1000,
        type: str = "exclusive",
        **more: Any,
    ) -> None:
        if not self.is_producing and not is_empty:
            self._publish()
        self.client = self.program.connect(self.gate.url, connect_timeout_ms=5_000, **self.options)
        self.subscribed = 0
        if self.is_producing:
            self.handle = self.client.producer(self.topic, **more)
            if opens:
                self.program.run(self.handle.open)
            return
        self.handle = self.program.consumer(
            self.client, self.topic, receiver_queue=receiver_queue, type=type, nack_delay_ms=10
        )
        self.subscribed = 1
        self.rest: list[Any] = []
        if self.call not in RECEIVING:
            self.first = self.program.run(lambda: self.handle.receive(RECEIVE_SECONDS))
            if self.situation == "window full":
                self.rest = [self.program.run(lambda: self.handle.receive(RECEIVE_SECONDS)) for _ in MESSAGES[1:]]
        if not opens:
            self.handle = self.program.unopened(self.handle)

    def _send_before(self, count: int = 1) -> None:
        """Begin calls of ``send`` that are under way when the call of the cell is made."""
        for number in range(count):
            value = b"before %d" % number
            self.values.append(value)
            self.earlier.append(self.program.begin(partial(self.handle.send, value)))
            self._nap(0.01)

    def _outcome(self, *, raises: bool = False) -> str:
        """Make the call; return what came of it in a word."""
        self.began = time.monotonic()
        self.result: Any = None
        try:
            self.result = self.program.run(self._work)
        except BaseException as error:
            if raises and not isinstance(error, heliograph.errors.HeliographError):
                raise
            return type(error).__name__
        return "nothing" if self.result == [] else "done"

    def _work(self) -> Any:
        handle = self.handle
        match self.call:
            case "send":
                return handle.send(b"x")
            case "send_async":
                return self.program.send_async(handle, b"x")
            case "send_many":
                return handle.send_many([b"x", b"y"])
            case "flush":
                return handle.flush()
            case "receive":
                return handle.receive(self._receive_seconds)
            case "receive_many":
                return handle.receive_many(1, self._receive_seconds)
            case "iteration":
                return self.program.next_of(handle)
            case "acknowledge":
                return handle.ack(self.first.message_id)
            case "nack":
                return handle.nack(self.first.message_id)
            case "seek":
                return handle.seek("earliest")
            case _:
                return handle.close()

    @property
    def _receive_seconds(self) -> float:
        return SHORT_MS / 1000 if self.situation == "server away" else RECEIVE_SECONDS

    def _finish(self, outcome: str) -> None:
        """Check what has to hold after the call, whatever came of it, and say the outcome."""
        self.gate.release()
        if self.is_producing:
            self._check_stored(outcome)
        else:
            self._check_received(outcome)
        self._say(outcome)
        self.gate.close()

    def _check_stored(self, outcome: str) -> None:
        own = {"send": [b"x"], "send_async": [b"x"], "send_many": [b"x", b"y"]}.get(self.call, [])
        if outcome == "done" and not own and self.situation != "server away":
            assert self._stored() == self.values, f"{self._stored()} is stored, of {self.values}"
        for each in self.earlier:
            settled = each()
            if self.situation != "server away":
                assert isinstance(settled, heliograph.MessageId), f"an earlier call has come to {settled!r}"
            elif outcome == "done":
                assert isinstance(settled, heliograph.errors.RequestTimeoutError)
        stored = self._stored()
        if self.call != "close of a producer" and outcome != "AlreadyClosedError":
            self._send_after()
            stored = self._stored()
            assert stored.pop() == b"after"
            while stored and stored[-1] == b"after":  # sent again, as its receipt was late
                stored.pop()
        expected = self.values + own
        if outcome == "done" and self.situation != "server away":
            assert stored == expected, f"{stored} is stored, not {expected}"
        elif outcome not in (INTERRUPTED, "RequestTimeoutError", "done"):
            assert stored == self.values, f"{stored} is stored, not {self.values}"
        else:
            assert stored in (self.values, expected), f"{stored} is stored, of {expected}"

    def _send_after(self) -> None:
        """Send a message with the handle of the call, whose time limit may be short for a busy machine."""
        while True:
            try:
                self.program.run(lambda: self.handle.send(b"after"))
                return
            except heliograph.errors.RequestTimeoutError:
                if self.situation != "server away":
                    raise

    def _check_received(self, outcome: str) -> None:
        if self.call in RECEIVING and self.situation in ("interrupted by an exception", "cancelled"):
            self._publish()
        received: list[bytes] = []
        if self.call in RECEIVING and outcome in ("done", "waits"):
            found = self.result if isinstance(self.result, list) else [self.result]
            received += [message.data for message in found]
        if self.call == "acknowledge":
            if outcome == INTERRUPTED:  # it may have been stored; a second call makes sure
                self.program.run(lambda: self.handle.ack(self.first.message_id))
            self.program.run(self.handle.close)
            gone = (
                {self.first.data, *(message.data for message in self.rest)} if outcome in ("done", INTERRUPTED) else ()
            )
            expected = [value for value in MESSAGES if value not in gone]
            assert (left := self._left()) == expected, f"{left} is left, not {expected}"
            return
        if self.call == "close of a consumer":
            if outcome != "done":
                self.program.run(self.handle.close)  # waits for the end of the first, if that has begun
            expected = [value for value in MESSAGES if value not in [message.data for message in self.rest]]
            assert (left := self._left()) == expected, f"{left} is left, not {expected}"
            return
        if self.call == "seek" and outcome == INTERRUPTED:
            self.program.run(self._work)
        expected = MESSAGES
        if self.call == "nack" and outcome == "done":
            expected = [self.first.data]
        elif outcome not in ("done", INTERRUPTED, "ConnectionLostError") and self.call in ("nack", "seek"):
            expected = MESSAGES[1:]
        while not set(expected) <= set(received):
            message = self.program.run(lambda: self.handle.receive(RECEIVE_SECONDS))
            received.append(message.data)
        if self.situation == "server restarting":  # what was not acknowledged is delivered again
            received = list(dict.fromkeys(received))
        if self.call != "nack":
            assert received == expected, f"{received} was received, not {expected}"
        self.program.run(self.handle.close)

    def _publish(self) -> None:
        self._directly(lambda client: client.producer(self.topic, batch_messages=1).send_many(MESSAGES))

    def _stored(self) -> list[bytes]:
        """Return what the topic has, once each if a receipt may have been lost: the topic does not deduplicate."""

        def read(client: heliograph.Client) -> list[bytes]:
            with client.reader(self.topic, "earliest") as reader:
                found = []
                while reader.has_message_available():
                    found.append(reader.receive(RECEIVE_SECONDS).data)
                return list(dict.fromkeys(found)) if self.situation == "server restarting" else found

        return list(self._directly(read))

    def _left(self) -> list[bytes]:
        """Return what the subscription still has to deliver."""

        def read(client: heliograph.Client) -> list[bytes]:
            client.producer(self.topic).send(b"the end")
            found: list[bytes] = []
            with client.consumer(self.topic, "s") as consumer:
                while not found or found[-1] != b"the end":
                    found.append(consumer.receive(RECEIVE_SECONDS).data)
            return found[:-1]

        return list(self._directly(read))

    def _directly(self, use: Callable[[heliograph.Client], Any]) -> Any:
        """Use a sync client without the gate."""
        with heliograph.connect(self._url) as client:
            return use(client)

    def _nap(self, seconds: float) -> None:
        if isinstance(self.program, AsyncProgram):
            import asyncio

            self.program.run(lambda: asyncio.sleep(seconds))
        else:
            time.sleep(seconds)

    def _soon(self, act: Callable[[], None], seconds: float = SOON_SECONDS) -> None:
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()

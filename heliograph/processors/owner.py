"""The owner of one partition: it reads the inputs, calls the handlers, and commits their effects in groups."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from heliograph.base.clock import seconds_of, wall_ms
from heliograph.base.errors import BadRequestError, HeliographError, failure_text
from heliograph.base.guard.quiet_log import SparseLog
from heliograph.processors.changelog import Changelog
from heliograph.processors.context import Context
from heliograph.processors.group import Cell, PartitionState
from heliograph.processors.outputs import Outputs
from heliograph.processors.records import ProcessorOutput, StateKey
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName
from heliograph.tasks.records import KEY_BYTES_MAX, letter_properties

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.consumer.message import Message
    from heliograph.client.aio.consumer.reader import AsyncReader
    from heliograph.processors.logic import Logic
    from heliograph.processors.options import ProcessorOptions
    from heliograph.processors.windows import WindowSpan

TOGETHER_MAX = 1_000  # messages that are taken from an input at once # I15
SETTLE_SECONDS = 1.0  # without messages, after which the outputs of the last group are recorded as stored
CURSOR_SECONDS = 5.0  # between two moves of the subscription
LETTER_BYTES_MAX = 1 << 20  # a larger message has a letter that names its position # I15
SOURCE = "heliograph.source"  # a property of a letter

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(slots=True)
class OwnerFigures:
    """Counts of an owner since it began."""

    handled: int = 0  # messages
    failures: int = 0  # of handlers
    letters: int = 0
    groups: int = 0
    restore_seconds: float = 0.0
    is_restored: bool = False


class PartitionOwner:
    """Owns one partition of a processor, until it is stopped or another owner fences it.

    Args:
        partition: Number of the partition; -1: the inputs have none.
        check_output: Called before a topic is first sent to; raises if it may not be.
        threads: Where handlers that are no coroutines run, one at a time.
        clock_ms: The time that timers go by, in ms since the epoch.
    """

    def __init__(
        self,
        client: AsyncClient,
        options: ProcessorOptions,
        logic: Logic,
        partition: int,
        *,
        check_output: Callable[[str], Coroutine[Any, Any, None]],
        threads: Executor,
        user_log: logging.Logger,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.partition = partition
        self.figures = OwnerFigures()
        self.state = PartitionState(options, logic.form, logic.window)
        self.is_paused = False
        self._client = client
        self._options = options
        self._logic = logic
        self._check_output = check_output
        self._threads = threads
        self._log = user_log
        self._late_log = SparseLog(log)
        self._clock_ms = clock_ms
        self._changelog = Changelog(client, self._own_name(options.topic("state")))
        self._outputs = Outputs(client, f"{options.namespace}/{options.name}/{max(0, partition)}", logic.outputs)
        self._known_outputs: set[str] = set()
        self._readers: dict[str, AsyncReader[Any]] = {}  # by the full names of inputs
        self._receiving: dict[str, asyncio.Task[list[Message[Any]]]] = {}
        self._commit_at: float | None = None  # of the group, by the clock of the loop
        self._settle_at: float | None = None
        self._moved: dict[str, MessageId] = {}  # positions of the subscription
        self._move_at = 0.0
        self._attempts: tuple[object, int] = (None, 0)  # what failed last, and how often
        self._alone = 0  # next messages that are handled one by one, because their batch failed
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._commit_every = seconds_of(options.commit_every, "commit_every")

    async def run(self) -> None:
        """Restore the states, and handle messages until ``stop``; then commit the handled messages.

        Raises:
            ProducerFencedError: Another owner has the partition.
            HeliographError: The partition cannot be worked on now; another owner can be made.
        """
        try:
            await self._begin()
            while not self._is_stopping:
                await self._wait()
                if not self.is_paused:
                    await self._take_all()
                    await self._fire()
                await self._commit_if_due()
            await self._commit()
            await self._settle()
            await self._move_cursor()
        finally:
            for receiving in self._receiving.values():
                receiving.cancel()
            closing = [reader.close() for reader in self._readers.values()]
            await asyncio.gather(*closing, self._outputs.close(), self._changelog.close(), return_exceptions=True)

    def stop(self) -> None:
        """Have ``run`` end after the message in hand."""
        self._is_stopping = True
        self._wake.set()

    def pause(self, *, is_paused: bool) -> None:
        """Handle no further message, timer or window, or go on."""
        self.is_paused = is_paused
        self._wake.set()

    # -- the beginning

    async def _begin(self) -> None:
        begun = time.monotonic()
        last = await self._changelog.own(self.state.restore)
        self.state.begin(last)
        self.figures.restore_seconds, self.figures.is_restored = time.monotonic() - begun, True
        await self._outputs.publish(last)
        for topic in self._options.inputs:
            start: str | MessageId = last.positions.get(topic, self._options.start)
            self._readers[topic] = self._client.reader(
                self._own_name(topic), start, schema=self._logic.inputs.get(topic)
            )
            await self._readers[topic].open()
        self._settle_at = asyncio.get_running_loop().time() if last.outputs else None

    def _own_name(self, topic: str) -> str:
        return topic if self.partition < 0 else str(TopicName.parse(topic).of_partition(self.partition))

    # -- waiting

    async def _wait(self) -> None:
        """Wait for messages, for a timer or commit that is due, or for ``pause`` and ``stop``."""
        for topic, reader in self._readers.items():
            if topic not in self._receiving:
                self._receiving[topic] = asyncio.ensure_future(reader.receive_many(TOGETHER_MAX))
        waking = asyncio.ensure_future(self._wake.wait())
        ready = () if self.is_paused else self._receiving.values()
        try:
            await asyncio.wait({waking, *ready}, timeout=self._seconds_to_wait(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        self._wake.clear()

    def _seconds_to_wait(self) -> float | None:
        now = asyncio.get_running_loop().time()
        waits = [at - now for at in (self._commit_at, self._settle_at) if at is not None]
        due_ms = self.state.next_timer_ms()
        if due_ms is not None and not self.is_paused:
            waits.append((due_ms - self._clock_ms()) / 1000)
        if self.state.committed.positions != self._moved:
            waits.append(self._move_at - now)
        return max(0.0, min(waits)) if waits else None

    # -- messages

    async def _take_all(self) -> None:
        for topic, receiving in list(self._receiving.items()):
            if receiving.done():
                del self._receiving[topic]
                await self._take(topic, receiving.result())

    async def _take(self, topic: str, messages: Sequence[Message[Any]]) -> None:
        left = [each for each in messages if self.state.is_new(topic, each.message_id)]
        while left and not self._is_stopping:
            self._begin_group()
            done, failure = await self._called(self._handled(topic, left))
            left = left[done:]
            self.figures.handled += done
            if failure is not None:
                await self._commit()
                if await self._given_up(left[0].message_id, failure, _letter_of(left[0])):
                    self.state.passed(topic, left[0].message_id, _time_of(left[0]))
                    left = left[1:]
            await self._commit_if_due()

    async def _handled(self, topic: str, messages: Sequence[Message[Any]]) -> tuple[int, BaseException | None]:
        """Call the handler of messages, in turn, until the group is to be committed. It awaits nothing but coroutines
        of the user, so it can run on a thread.

        Returns:
            The number of handled messages, and the reason why the next one was not.
        """
        done = 0
        while done < len(messages) and not (done and self._is_group_over()):
            is_alone = self._alone > 0 or self._logic.on_batch is None
            share = messages[done : done + (1 if is_alone else self._options.batch)]
            contexts: list[Context] = []
            try:
                await self._handle(share, contexts)
                self.state.accept(contexts)
            except BaseException as error:
                if self._ends(error):
                    raise
                self.state.drop(contexts)
                if len(share) == 1:
                    return done, error
                self._alone = len(share)
                continue
            self._alone = max(0, self._alone - 1)
            for message in share:
                self.state.passed(topic, message.message_id, _time_of(message))
            done += len(share)
        return done, None

    async def _handle(self, share: Sequence[Message[Any]], contexts: list[Context]) -> None:
        logic = self._logic
        if logic.on_batch is not None:
            contexts.extend(self._context(message.key) for message in share)
            await _answer(logic.on_batch(share, contexts))
            return
        assert logic.on_message is not None, "a processor has on_message or on_batch"
        message = share[0]
        if logic.window is None:
            contexts.append(self._context(message.key))
            await _answer(logic.on_message(message, contexts[0]))
            return
        watermark = self.state.watermark
        spans = logic.window.spans(_time_of(message))
        open_spans = [each for each in spans if watermark is None or each.end_ms > watermark]
        for span in open_spans:
            contexts.append(self._context(message.key, span))
            await _answer(logic.on_message(message, contexts[-1]))
        if not open_spans:
            await self._handle_late(message, contexts)

    async def _handle_late(self, message: Message[Any], contexts: list[Context]) -> None:
        self.state.late += 1
        self._late_log.warning("%s: messages came after the end of their windows", self._options.name)
        if self._logic.on_late is not None:
            contexts.append(self._context(None))
            try:
                await _answer(self._logic.on_late(message, contexts[0]))
            except BaseException:
                self.state.late -= 1  # it is handled again
                raise

    def _context(self, key: str | None, span: WindowSpan | None = None) -> Context:
        def cell() -> Cell:
            assert key is not None, "a context without a key asks for no cell"
            return self.state.cell(StateKey(key, None if span is None else span.start_ms))

        return Context(
            key,
            cell,
            window=span,
            partition=max(0, self.partition),
            now_ms=self._clock_ms(),
            outputs=self._logic.outputs,
            check=self._options.check_outputs,
            has_timers=self._logic.on_timer is not None,
            log=self._log,
        )

    # -- timers and windows

    async def _fire(self) -> None:
        """Call the handlers of the windows that are over and of the timers that are due."""
        while not self._is_stopping:
            window, timer = self.state.end_window(), None
            if window is None:
                timer = self.state.due_timer(self._clock_ms())
            if window is None and timer is None:
                return
            self._begin_group()
            failure = await self._called(self._fired(window, timer))
            if failure is not None:
                await self._commit()
                key, what = (window, "window") if timer is None else timer
                assert key is not None, "a window or a timer is due"
                letter = ProcessorOutput("", b"", key.key, {SOURCE: f"{what} {key.text}"})
                if await self._given_up((key, what), failure, letter):
                    self._end(window, timer)
            await self._commit_if_due()

    async def _fired(self, window: StateKey | None, timer: tuple[StateKey, str] | None) -> BaseException | None:
        key = window if timer is None else timer[0]
        assert key is not None, "a window or a timer is due"
        span = None if key.start_ms is None or self._logic.window is None else self._logic.window.span(key.start_ms)
        context = self._context(key.key, span)
        try:
            if timer is not None:
                context.cancel_timer(timer[1])
                if self._logic.on_timer is not None:  # a later version of the processor may have none
                    await _answer(self._logic.on_timer(timer[1], context))
            elif self._logic.on_window is not None:
                await _answer(self._logic.on_window(context))
            self.state.accept([context])
        except BaseException as error:
            if self._ends(error):
                raise
            self.state.drop([context])
            return error
        if window is not None:
            self.state.forget(window)
        return None

    def _end(self, window: StateKey | None, timer: tuple[StateKey, str] | None) -> None:
        """Forget a window or a timer whose handler fails."""
        if timer is None:
            assert window is not None, "a window or a timer is due"
            self.state.forget(window)
            return
        context = self._context(timer[0].key)
        context.cell = self.state.cell(timer[0])
        context.cancel_timer(timer[1])
        self.state.accept([context])

    # -- failures

    async def _given_up(self, what: object, failure: BaseException, letter: ProcessorOutput) -> bool:
        """Note that a handler failed. Return whether it is not called again: then its letter is in the group; else
        the pause before that is over."""
        self.figures.failures += 1
        attempts = self._attempts[1] + 1 if self._attempts[0] == what else 1
        self._attempts = what, attempts
        text = failure_text(failure)[:2_000]
        self._log.warning("attempt %d at %s failed: %s", attempts, what, text)
        if attempts > self._options.retries:
            shown = "".join(traceback.format_exception(failure))
            key = letter.key if len((letter.key or "").encode()) <= KEY_BYTES_MAX else None
            properties = letter_properties(key, letter.properties or {}, text, shown)
            target = self._options.topic("letters")
            self._begin_group()  # of its own: no message may come after it
            self.state.send([ProcessorOutput(target, letter.payload, key, properties, letter.event_time_ms)])
            self.figures.letters += 1
            self._attempts = None, 0
            return True
        first, longest = self._options.backoff
        try:
            async with asyncio.timeout(min(longest, first * 2 ** min(attempts - 1, 30))):
                while not self._is_stopping:
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            pass
        return False

    # -- commits

    def _begin_group(self) -> None:
        if self._commit_at is None:
            self._commit_at = asyncio.get_running_loop().time() + self._commit_every

    def _is_group_over(self) -> bool:
        is_late = self._commit_at is not None and self._commit_every > 0 and time.monotonic() >= self._commit_at
        return self.state.is_full or self._is_stopping or is_late

    async def _commit_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.state.is_full or (self._commit_at is not None and now >= self._commit_at):
            await self._commit()
        elif self._settle_at is not None and now >= self._settle_at and self._commit_at is None:
            await self._settle()
        if now >= self._move_at and self.state.committed.positions != self._moved:
            await self._move_cursor()

    async def _commit(self) -> None:
        """Store the group, then publish its outputs."""
        self._commit_at = None
        if self.state.has_changes:
            await self._store()

    async def _settle(self) -> None:
        """Record that the outputs of the last group are stored, so that no later owner publishes them again."""
        self._settle_at = None
        if self.state.committed.outputs:
            await self._store()

    async def _store(self) -> None:
        for topic in self.state.topics - self._known_outputs:
            await self._check_output(topic)
            await self._outputs.prepare(topic)
            self._known_outputs.add(topic)
        group = self.state.sealed(self._outputs.choose)
        await self._changelog.commit(group)
        self.state.stored(group)
        await self._outputs.publish(group)
        self.figures.groups += 1
        self._settle_at = asyncio.get_running_loop().time() + SETTLE_SECONDS if group.outputs else None

    async def _move_cursor(self) -> None:
        """Have the subscription follow, which keeps the messages that are not handled from deletion."""
        self._move_at = asyncio.get_running_loop().time() + CURSOR_SECONDS
        for topic, position in self.state.committed.positions.items():
            if self._moved.get(topic) == position:
                continue
            is_whole = position.batch_index < 0 or position.batch_index + 1 == position.batch_size
            entry = f"{position.ledger_id}:{position.entry_id}"
            try:
                await self._client.admin.cursors.reset(
                    self._own_name(topic), self._options.name, entry, excluded=is_whole
                )
            except HeliographError as error:
                log.warning("the subscription %s of %s stays behind: %s", self._options.name, topic, error)
        self._moved = dict(self.state.committed.positions)

    def _ends(self, error: BaseException) -> bool:
        """Return whether what a handler raised ends the owner: on the loop Ctrl-C and its own cancellation do."""
        if isinstance(error, asyncio.CancelledError) and self._logic.is_async:
            this = asyncio.current_task()
            return this is None or this.cancelling() > 0  # else it is of something that the handler awaited
        return isinstance(error, GeneratorExit) or (isinstance(error, KeyboardInterrupt) and self._logic.is_async)

    async def _called(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Run what calls handlers: here, or on the thread if the handlers are no coroutines."""
        if self._logic.is_async:
            return await call
        return await asyncio.get_running_loop().run_in_executor(self._threads, _ended, call)


async def _answer(returned: Any) -> None:
    if asyncio.iscoroutine(returned):
        await returned


def _ended(call: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine that awaits nothing to its end."""
    try:
        call.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    call.close()
    raise BadRequestError("a handler that is no coroutine returned one", field="function")


def _time_of(message: Message[Any]) -> int:
    return message.event_time_ms or message.publish_time_ms


def _letter_of(message: Message[Any]) -> ProcessorOutput:
    is_small = len(message.data) <= LETTER_BYTES_MAX
    properties = {**message.properties, SOURCE: f"{message.topic} {message.message_id}"}
    return ProcessorOutput(
        "", message.data if is_small else b"", message.key, properties, message.event_time_ms or None
    )

"""One attempt at a job: the call of its function, on the event loop or on a thread."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heliograph.base.clock import seconds_of, wall_ms
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError, ProtocolError, failure_text
from heliograph.tasks.current import CurrentJob, set_current_job
from heliograph.tasks.encoding import arguments_of, encode
from heliograph.tasks.records import ENCODING, ERROR_CHARACTERS_MAX, JobRecord, JobState

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.message import Message
    from heliograph.tasks.session import QueueSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job failed, whether another attempt is useless, and whether its message cannot be read."""

    text: str
    traceback: str = ""
    is_final: bool = False
    is_unreadable: bool = False

    @classmethod
    def of(cls, error: BaseException, *, is_final: bool = False, is_unreadable: bool = False) -> JobFailure:
        """Return the failure of a function that raised."""
        shown = "".join(traceback.format_exception(error))
        return cls(failure_text(error)[:ERROR_CHARACTERS_MAX], shown, is_final, is_unreadable)


class JobRun:
    """One attempt at a job: it watches for a revocation, the time limit and the progress that the function reports.

    Args:
        function: The function of the task, which takes the arguments of the job.
        is_coroutine: Whether calling it makes a coroutine; otherwise it runs on a thread.
        record: The state that was stored for this attempt.
    """

    def __init__(
        self,
        session: QueueSession,
        function: Callable[..., Any],
        threads: ThreadPoolExecutor,
        message: Message,
        job_id: str,
        record: JobRecord,
        *,
        is_coroutine: bool,
    ) -> None:
        self.record = record
        self.is_revoked = False
        self._session = session
        self._function = function
        self._is_coroutine = is_coroutine
        self._threads = threads
        self._message = message
        self._id = job_id
        self._loop = asyncio.get_running_loop()
        self._calling: asyncio.Task[Any] | None = None
        self._thread: asyncio.Future[Any] | None = None  # of a function that is no coroutine: it cannot be stopped
        self._is_over = False  # what the function reports later is not stored
        self._report: tuple[float | None, str] | None = None  # the last one that is not stored
        self._reporting: asyncio.Task[None] | None = None
        self._end_watching = session.watch(job_id, self._on_change)

    async def outcome(self) -> bytes | JobFailure | None:
        """Run the function. Return its encoded result, why it failed, or None if the job was revoked."""
        options = self._session.options
        seconds = None if options.timeout is None else seconds_of(options.timeout, "timeout")
        try:
            args, kwargs = self._arguments()
            set_current_job(CurrentJob(self._id, self.record.attempt, self._message.key, self._on_progress))
            self._calling = self._loop.create_task(self._called(args, kwargs))
            async with asyncio.timeout(seconds) as limit:
                value = await self._calling
            return value if isinstance(value, JobFailure) else encode(value, options.encoding, "result")
        except TimeoutError as error:
            return JobFailure(f"it took longer than {seconds} s") if limit.expired() else JobFailure.of(error)
        except asyncio.CancelledError:
            if self.is_revoked:
                return None
            raise
        except ProtocolError as error:
            return JobFailure.of(error, is_final=True, is_unreadable=True)
        except HeliographError as error:  # the result cannot be written
            return JobFailure.of(error)
        finally:
            self._is_over = True
            set_current_job(None)
            if self._reporting is not None:
                await asyncio.wait([self._reporting])

    async def end(self) -> None:
        """Stop watching the job. If it was too late or revoked, wait for its thread, which keeps the slot.
        Called once, whether the job was run or not."""
        self._end_watching()
        if self._thread is not None and not self._thread.done():
            log.warning("job %s runs on in its thread, and keeps its slot until then", self._id)
            await asyncio.wait([self._thread])

    def _arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments. The queue says how they are read, and not the message: a pickle runs code."""
        written, expected = self._message.properties.get(ENCODING, ""), self._session.options.encoding
        if written != expected:
            raise ProtocolError(f"the arguments are written as {written!r}", field="encoding", limit=expected)
        return arguments_of(self._message.data, expected)

    async def _called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the function's result, or its failure, whatever it raises."""
        if not self._is_coroutine:
            call = functools.partial(_call, self._function, args, kwargs)
            self._thread = self._loop.run_in_executor(self._threads, contextvars.copy_context().run, call)
            return await shielded(self._thread)
        try:
            return await self._function(*args, **kwargs)
        except asyncio.CancelledError as error:
            this = asyncio.current_task()
            if this is None or this.cancelling():
                raise
            return JobFailure.of(error)  # of something that the function awaited
        except (Exception, SystemExit) as error:
            return JobFailure.of(error)

    def _on_change(self, record: JobRecord | HeliographError) -> None:
        if isinstance(record, JobRecord) and record.state is JobState.REVOKED:
            self.is_revoked = True
            if self._calling is not None:
                self._calling.cancel()

    def _on_progress(self, progress: float | None, note: str) -> None:
        self._loop.call_soon_threadsafe(self._keep_report, progress, note)

    def _keep_report(self, progress: float | None, note: str) -> None:
        self._report = progress, note
        if not self._is_over and (self._reporting is None or self._reporting.done()):
            self._reporting = self._loop.create_task(self._store_reports())

    async def _store_reports(self) -> None:
        while self._report is not None and not self._is_over and not self.is_revoked:
            (progress, note), self._report = self._report, None
            self.record = replace(self.record, progress=progress, note=note, at_ms=wall_ms())
            try:
                await self._session.record(self._id, self.record)
            except HeliographError as error:
                log.debug("the progress of job %s is not stored: %s", self._id, error)


def _call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except BaseException as error:  # Ctrl-C is raised on the main thread only
        return JobFailure.of(error)

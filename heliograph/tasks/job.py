"""The handle of a job that was submitted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heliograph.base.clock import Duration, seconds_of
from heliograph.base.errors import JobFailedError, JobRevokedError, RequestTimeoutError
from heliograph.client.sync.handle import refuse_on_running_loop
from heliograph.tasks.encoding import result_of
from heliograph.tasks.records import JobRecord, JobState
from heliograph.tasks.session import QueueSession

if TYPE_CHECKING:
    from heliograph.tasks.task import Task

R = TypeVar("R")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Job(Generic[R]):
    """A job of a task. Picklable, if its task is.

    Attributes:
        task: The task.
        id: Id of the job, unique in its queue.
    """

    task: Task[Any, R]
    id: str

    async def result(self, timeout: Duration | None = None) -> R:
        """Return the result of the function, once a worker has run it.

        Args:
            timeout: Seconds to wait, or a timedelta; None waits for ever, also for a job whose state has expired.

        Raises:
            RequestTimeoutError: There is no result in time; the job goes on.
            JobFailedError: It failed for good.
            JobRevokedError: It was cancelled.
            NotFoundError: The result has expired.
            ProtocolError: The result cannot be read here.
        """
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        try:
            async with asyncio.timeout(seconds):
                record, data = await self.task.on_session(self._ended)
        except TimeoutError:
            raise RequestTimeoutError(f"job {self.id} has no result after {seconds} s", field="timeout") from None
        if record.state is JobState.FAILURE:
            raise JobFailedError(f"job {self.id} failed: {record.note}")
        if record.state is JobState.REVOKED:
            raise JobRevokedError(f"job {self.id} was cancelled")
        return result_of(data, self.task.options.encoding, self.task.function)  # type: ignore[no-any-return]

    async def status(self) -> JobState:
        """Return the present state of the job; PENDING, too, if none is stored."""
        record = await self.record()
        return JobState.PENDING if record is None else record.state

    async def record(self) -> JobRecord | None:
        """Return the present record of the job: state, attempt, worker, progress; None: there is none."""
        return await self.task.on_session(lambda session: session.known(self.id))

    async def cancel(self) -> bool:
        """Revoke the job unless it has ended. A coroutine that runs it is cancelled; a thread is not.

        Returns:
            Whether it is revoked now. A worker that ends it at the same moment may store a result nevertheless.
        """
        return await self.task.on_session(lambda session: session.revoke(self.id, self.task.name))

    async def _ended(self, session: QueueSession) -> tuple[JobRecord, bytes]:
        record = await session.ended(self.id)
        return record, await session.load_result(record) if record.state is JobState.SUCCESS else b""


class BlockingJob(Generic[R]):
    """A job for programs without an event loop; its calls wait for their answers. Errors are those of ``Job``."""

    def __init__(self, job: Job[R]) -> None:
        self._job = job
        self.id = job.id

    @classmethod
    def of(cls, submitting: Coroutine[Any, Any, Job[R]]) -> BlockingJob[R]:
        """Return the job that a call of ``Task.submit`` returns."""
        return cls(waited(submitting))

    def result(self, timeout: Duration | None = None) -> R:
        """Return the result of the function, as ``Job.result`` does."""
        return waited(self._job.result(timeout))

    def status(self) -> JobState:
        """Return the state of the job, as ``Job.status`` does."""
        return waited(self._job.status())

    def cancel(self) -> bool:
        """Revoke the job, as ``Job.cancel`` does."""
        return waited(self._job.cancel())


def waited(call: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Return the result of a task's call, in a thread without an event loop.

    Raises:
        RunningLoopError: An event loop runs in this thread.
    """
    refuse_on_running_loop(call, "a blocking call of a task", "the same call of the task itself")
    return asyncio.run(call)

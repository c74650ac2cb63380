"""The schedules of a queue in one event loop, and the submission of their jobs; each worker has both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from typing_extensions import override

from heliograph.base.clock import wall_ms
from heliograph.base.errors import AlreadyClosedError, BadRequestError, HeliographError, NotFoundError, ProtocolError
from heliograph.base.guard.quiet_log import SparseLog
from heliograph.client.aio.handle import AsyncHandle
from heliograph.client.aio.table_view import AsyncTableView
from heliograph.client.options import TableViewOptions
from heliograph.client.schemas.schema import Schema
from heliograph.protocol.topic_name import TopicName
from heliograph.tasks.options import EXPIRY, TaskOptions
from heliograph.tasks.records import ENCODING, ID, NAME, NAMED, PRIORITY
from heliograph.tasks.schedule import NAME_CHARACTERS_MAX, SCHEDULES_MAX, SUBMITTED, Schedule, Submission, decode
from heliograph.tasks.session import check_job_key

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.protocol.schema import SchemaInfo
    from heliograph.tasks.session import QueueSession

LOOK_SECONDS = 1.0  # between two looks for schedules that came or went
AGAIN_SECONDS = 5.0  # after a failure
KEPT_TIMES_MAX = 5  # that a record comes back while it is replaced; more often, another program sets it, too
SPREAD_SECONDS = 0.2  # over which the workers of a queue are spread, so that the first one submits for all

log = logging.getLogger(__name__)


class ScheduleSchema(Schema[Schedule | Submission]):
    """Schedules as the values of a topic that has no schema in the registry."""

    @override
    def encode(self, value: Schedule | Submission) -> bytes:
        return value.encode()

    @override
    def decoder(self, written: SchemaInfo | None) -> Callable[[bytes], Schedule | Submission]:
        return decode


class Schedules(AsyncHandle):
    """The schedules of a queue, by name. Opening raises the errors of ``AsyncProducer`` and ``AsyncTableView``."""

    def __init__(self, client: AsyncClient, options: TaskOptions) -> None:
        super().__init__()
        topic, schema = str(TopicName.parse(options.schedules_topic)), ScheduleSchema()
        self._recorder = client.producer(topic, schema=schema, initial_subscription=EXPIRY)
        self._view = AsyncTableView[Schedule | Submission](
            client, TableViewOptions(topic, schema=schema, keys_max=2 * SCHEDULES_MAX)
        )

    def all(self) -> dict[str, Schedule]:
        """Return the schedules that this process knows."""
        return {name: each for name, each in self._view.snapshot().items() if isinstance(each, Schedule)}

    def submitted_ms(self, name: str) -> int:
        """Return the time of a schedule that was submitted last, in ms since the epoch; 0 before the first."""
        found = self._view.get(name + SUBMITTED)
        return found.at_ms if isinstance(found, Submission) else 0

    async def refresh(self) -> None:
        """Wait until the view has every message that was stored before the call; raises as the view."""
        await self._view.refresh()

    async def set(self, name: str, schedule: Schedule) -> None:
        """Store a schedule instead of the one of its name; it is durable when this returns.

        Raises:
            BadRequestError: The name, the key, the fields or the zone is bad, or there are too many schedules.
        """
        if not 0 < len(name) <= NAME_CHARACTERS_MAX or SUBMITTED in name:
            raise BadRequestError(
                f"{name!r} is no name of a schedule", field="name", limit=f"1 to {NAME_CHARACTERS_MAX}, without @"
            )
        check_job_key(schedule.key)
        schedule.next_ms(schedule.since_ms)
        await self.refresh()
        if name not in self._view and len(self.all()) >= SCHEDULES_MAX:
            raise BadRequestError(
                f"the queue has {SCHEDULES_MAX} schedules", field="name", limit=f"{SCHEDULES_MAX} schedules of a queue"
            )
        await self._replace(name, schedule)

    async def delete(self, name: str) -> None:
        """Delete a schedule; jobs that it has submitted stay.

        Raises:
            NotFoundError: There is none of this name.
        """
        await self.refresh()
        if name not in self.all():
            raise NotFoundError(f"the queue has no schedule {name!r}", field="name")
        for key in (name, name + SUBMITTED):
            await self._replace(key, None)

    async def _replace(self, key: str, record: Schedule | None) -> None:
        """Store a record. ``keep`` may have stored the one before again meanwhile, so it is looked whether it did."""
        before = self._view.get(key)
        for _ in range(KEPT_TIMES_MAX):
            await self._recorder.send(record, key=key)
            await self.refresh()
            if before in (None, record) or self._view.get(key) != before:
                return

    async def note(self, name: str, at_ms: int) -> None:
        """Store that the job of a time was submitted."""
        await self._recorder.send(Submission(at_ms), key=name + SUBMITTED)

    async def keep(self, key: str, data: bytes) -> None:
        """Store a record again that is about to expire, if it is still the latest of its key."""
        with contextlib.suppress(ProtocolError):  # nobody can read it
            record = decode(data)
            await self.refresh()
            if self._view.get(key) == record:
                await self._recorder.send(record, key=key)

    @override
    async def _do_open(self) -> None:
        await self._recorder.open()
        await self._view.open()

    @override
    async def _do_close(self) -> None:
        await asyncio.gather(self._recorder.close(), self._view.close())


class Scheduler:
    """Submits the jobs of the schedules of a queue when their times come.

    Each worker has one. All make the same id for the job of one time, so it runs once.

    Args:
        spread: Returns a number from 0 to 1, which spreads the workers.
        now_ms: The time, in ms since the epoch.
    """

    def __init__(
        self,
        session: QueueSession,
        schedules: Schedules,
        spread: Callable[[], float] = random.random,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._session = session
        self._schedules = schedules
        self._spread = spread
        self._now_ms = now_ms
        self._log = SparseLog(log)

    async def run(self) -> None:
        """Submit jobs until this is cancelled or the schedules are closed."""
        is_prepared = False
        while True:
            try:
                await self._schedules.open()
                if not is_prepared:
                    await self._session.compact(self._session.options.schedules_topic)
                    is_prepared = True
                seconds = await self.submit_due()
            except AlreadyClosedError:
                return
            except HeliographError as error:
                log.warning("%s: schedules wait for %.0f s: %s", self._session.options.queue, AGAIN_SECONDS, error)
                seconds = AGAIN_SECONDS
            await asyncio.sleep(seconds)

    async def submit_due(self) -> float:
        """Submit the jobs whose time has come. Return the seconds until the next look."""
        now = self._now_ms()
        seconds = LOOK_SECONDS
        for name, schedule in self._schedules.all().items():
            try:
                if schedule.due_ms(self._schedules.submitted_ms(name), now) is not None:
                    await self._submit(name)
                next_ms = schedule.next_ms(now)
            except BadRequestError as error:  # this host does not know its zone, for example
                self._log.warning("schedule", "%s: schedule %s waits: %s", self._session.options.queue, name, error)
                continue
            seconds = min(seconds, (next_ms - now) / 1000 + SPREAD_SECONDS * self._spread())
        return seconds

    async def _submit(self, name: str) -> None:
        await self._schedules.refresh()  # another worker may have submitted it, or the schedule is gone
        schedule = self._schedules.all().get(name)
        if schedule is None:
            return
        due = schedule.due_ms(self._schedules.submitted_ms(name), self._now_ms())
        if due is None:
            return
        properties = {
            ID: schedule.job_id(name, due),
            NAME: schedule.task,
            ENCODING: schedule.encoding,
            NAMED: "yes",
            **({PRIORITY: str(schedule.priority)} if schedule.priority else {}),
        }
        priority = min(schedule.priority, self._session.options.priorities - 1)
        await self._session.submit(schedule.payload, properties, key=schedule.key, delay=0, priority=priority)
        await self._schedules.note(name, due)

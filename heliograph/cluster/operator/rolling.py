"""The restart of parts one after the other, each when the cluster is whole again after the one before."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace

from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.client.discovery import AUDITOR, OPERATOR
from heliograph.cluster.naming import kind_of
from heliograph.cluster.operator.departure import unload
from heliograph.cluster.operator.ports import OperatorContext
from heliograph.cluster.operator.roster import KINDS
from heliograph.metadata import paths
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.operator_records import RollingRestart
from heliograph.metadata.recipes.occupancy import registered
from heliograph.metadata.recipes.update_loop import read

POLL_SECONDS = 0.2  # a look is a few reads of metadata
WHOLE_SECONDS_MAX = 900.0  # for the copies to be back  # I15
NOTE = "restart"

log = logging.getLogger(__name__)


class Rolling:
    """One rolling restart. It continues after a restart of the operator itself."""

    def __init__(self, context: OperatorContext) -> None:
        self._store = context.store
        self._cluster = context.cluster
        self._leading = context.leading
        self._change = context.change
        self._note = context.note
        self._start_seconds = context.start_seconds

    async def run(self) -> None:
        """Restart the remaining parts that are still to run. A failure ends the restart, with the reason in the roster.

        Raises:
            MetadataError: the store failed; to be repeated.
        """
        restart = (await self._leading()).restart
        assert restart is not None, "there is something to restart"
        left, done = list(restart.left), list(restart.done)
        failure = ""
        while not failure and (left := await self._absent_first(left)):
            name = left[0]
            failure = await self._whole(before=name)
            if failure:
                break
            if name == OPERATOR:  # this one was started with the process that it shares; all parts are there again
                done.append(left.pop(0))
                await self._record(left, done, "")
                continue
            self._note(NOTE, f"restarting {name}; {len(done)} done, {len(left) - 1} to go")
            shared = await self._shared_process_of(name, left)
            if shared:
                # The operator is the first of what is left, so that its successor waits until all parts serve.
                is_own = OPERATOR in await self._cluster.shared()
                left = [*([OPERATOR] if is_own else []), *(each for each in left if each not in shared)]
                failure = await self._restart_shared(shared, left, done)
                done += shared
                continue
            if kind_of(name) == "metadata":  # recorded before: nothing can be stored while it is away
                await self._record(left[1:], [*done, name], "")
            failure = await self._restart(name)
            if not failure:
                done.append(left.pop(0))
                await self._record(left, done, "")
        stopped = f"the rolling restart stopped: {failure}; not restarted: {', '.join(left)}" if failure else ""
        await self._record([], done, stopped)
        self._note(NOTE, "")

    async def _absent_first(self, left: list[str]) -> list[str]:
        """Return the parts that were not taken out since: first what does not serve, and may need the code of now."""
        staying = {part.name for part in (await self._leading()).parts if not part.is_leaving and not part.is_held}
        left = [name for name in left if kind_of(name) not in KINDS or name in staying]
        try:
            serving = await registered(self._store)
        except ServiceNotReadyError:
            return left
        return sorted(left, key=lambda name: kind_of(name) not in KINDS or name in serving)

    async def _shared_process_of(self, name: str, left: list[str]) -> list[str]:
        """Return the parts that share a process with a part and restart with it; none if it restarts alone.

        A part of a shared process is restarted alone if not all of them are to be: it gets its present settings, and
        the process keeps its code.
        """
        shared = await self._cluster.shared()
        found = [each for each in left if each in shared]
        return found if name in shared and shared <= {*left, OPERATOR} else []

    async def _restart_shared(self, names: list[str], left: list[str], done: list[str]) -> str:
        """Restart the process that parts share. Return the reason if one of them does not serve, else an empty text.

        It is recorded before: this operator may be one of the parts, and its successor goes on.
        """
        for name in names:
            if kind_of(name) == "broker":
                with contextlib.suppress(HeliographError):  # else its topics are away for as long as it is
                    await unload(name, self._store, self._cluster)
        await self._record(left, [*done, *names], "")
        await self._cluster.replace_shared(names, await self._leading())
        deadline = time.monotonic() + self._start_seconds
        for name in names:
            while why := await self._cluster.started(name, max(1.0, deadline - time.monotonic())):
                if time.monotonic() > deadline:
                    return f"{name} does not serve after {self._start_seconds:.0f} s: {why}"
                await asyncio.sleep(POLL_SECONDS)
        await self._audit()
        return await self._whole(after=names[-1])

    async def _restart(self, name: str) -> str:
        """Restart one part. Return why it does not serve, or nothing."""
        begun = time.monotonic()
        if kind_of(name) == "broker":
            try:
                await unload(name, self._store, self._cluster)
            except HeliographError as error:
                self._note(NOTE, f"restarting {name}, which did not give all topics away: {error}")
        await self._cluster.remove(name)
        steps = [time.monotonic()]
        await self._cluster.create(name, await self._leading())
        deadline = time.monotonic() + self._start_seconds
        while why := await self._cluster.started(name, max(1.0, deadline - time.monotonic())):
            if time.monotonic() > deadline:
                return f"{name} does not serve after {self._start_seconds:.0f} s: {why}"
            await asyncio.sleep(POLL_SECONDS)  # Ray starts it again
        steps.append(time.monotonic())
        if kind_of(name) == "bookie":
            await self._audit()
        missing = await self._whole(after=name)
        steps.append(time.monotonic())
        gone, serves, whole = (each - begun for each in steps)
        log.info("%s ended after %.1f s, serves after %.1f s; all is whole after %.1f s", name, gone, serves, whole)
        return missing

    async def _audit(self) -> None:
        """Have entries found that the bookie missed while it was away."""
        try:
            await self._cluster.ask(AUDITOR, "trigger_audit")
        except HeliographError as error:
            self._note(NOTE, f"no audit: {error}")

    async def _whole(self, *, before: str = "", after: str = "") -> str:
        """Wait until all parts serve and no ledger lacks copies. After a long time, return what is missing."""
        deadline = time.monotonic() + WHOLE_SECONDS_MAX
        while missing := await self._missing(before):
            if time.monotonic() > deadline:
                return f"{f'before {before}' if before else f'after {after}'}, {missing}"
            self._note(NOTE, f"the rolling restart waits {f'to restart {before}' if before else ''}: {missing}")
            await asyncio.sleep(POLL_SECONDS)
        return ""

    async def _missing(self, before: str) -> str:
        """Return what keeps a part from a restart. Its own failure does not."""
        try:
            serving, roster = await registered(self._store), await self._leading()
            expected = {part.name for part in roster.parts if not part.is_leaving and not part.is_held} - {before}
            if absent := sorted(expected - serving):
                return f"{', '.join(absent)} not serving"
            lacking = await self._ledgers_lacking()
        except ServiceNotReadyError as error:
            return str(error)
        return f"{lacking} ledgers lack copies" if lacking else ""

    async def _ledgers_lacking(self) -> int:
        """Return how many ledgers lack copies for another reason than a bookie that is being emptied."""
        draining = {*await self._store.children(paths.BOOKIES_DRAINING)}
        count = 0
        for name in await self._store.children(paths.UNDERREPLICATED):
            try:
                task = (await read(self._store, f"{paths.UNDERREPLICATED}/{name}", UnderReplicatedLedger)).record
            except NoNodeError:
                continue
            count += not draining.issuperset(task.missing_bookies)
        return count

    async def _record(self, left: list[str], done: list[str], failure: str) -> None:
        restart = RollingRestart(tuple(left), tuple(done)) if left else None
        await self._change(lambda now: replace(now, restart=restart, failure=failure))

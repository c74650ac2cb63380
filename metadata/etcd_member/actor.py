"""The Ray actor of one etcd member: it runs etcd as a child, and ends with it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

from heliograph.base.completion import run_to_completion
from heliograph.base.errors import ConflictError, ResourceError
from heliograph.base.guard.child import GuardedChild
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.home import make_private
from heliograph.base.peer import ListenAddress
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.etcd_member.binary import dotted, find_etcd
from heliograph.metadata.etcd_member.command import SERIOUS, MemberPlan, command_of, environment_of, text_of
from heliograph.metadata.etcd_member.cookie import (
    DATA,
    MemberCookie,
    check_cookie,
    erase,
    note_served,
    read_cookie,
    replacement_of,
    write_cookie,
)

PERMIT_SECONDS = 20.0  # for the permission to begin on an empty disk, which follows the first start at once
STOP_SECONDS = 5.0  # for etcd to end in good order: it gives the leadership away
POLL_SECONDS = 0.1
LAST_WORDS_MAX = 300  # characters  # I15
LINES_PER_MINUTE_MAX = 60  # of etcd, in the log of the actor  # I15

log = logging.getLogger(__name__)
quiet = QuietLog(log, lines=LINES_PER_MINUTE_MAX)


class EtcdMemberActor:
    """One member in a child process; ``heliograph/cluster`` makes it a Ray actor.

    When etcd ends, the actor ends too (``ended``), and Ray starts both again, after pauses that grow. The kernel kills
    etcd when the actor's process has ended.
    """

    ungated = frozenset({"permit", "retire"})  # while the start waits for it, or fails

    def __init__(self, directory: str, listen: ListenAddress, plan: MemberPlan) -> None:
        """
        Args:
            directory: of the member, on a disk of this node.
            listen: the address to bind to.
            plan: the member, its cluster and its settings.
        """
        self._directory = Path(directory)
        self._listen = listen
        self._plan = plan
        self._permitted = asyncio.Event()
        self._disk = asyncio.Lock()  # while data is deleted: a caller that gave up asks again
        self._child: GuardedChild | None = None
        self._exit: asyncio.Future[int] | None = None
        self._is_stopped = False
        self._is_retiring = False
        self._last_words = ""  # of etcd, when something is wrong

    def __repr__(self) -> str:
        return f"EtcdMember({self._plan.name})"

    async def start(self) -> str:
        """Run etcd until it serves, and return ``host:port`` for clients. Idempotent.

        A member serves when a quorum of all members does, so this may wait for the others.

        Raises:
            ResourceError: there is no usable etcd, or it ended; says why.
            ConflictError: the disk is another member's, or it is empty and no permission was given to begin on it.
        """
        if self._exit is None:
            binary, version = await asyncio.to_thread(find_etcd, self._plan.config.binary)
            cookie = await self._cookie()
            command = command_of(
                self._plan, binary, self._directory / DATA, self._listen.host, is_joining=cookie.is_joining
            )
            make_private(self._directory / DATA)  # etcd asks for this mode
            log.info("runs %s, version %s", binary, dotted(version))
            self._child = GuardedChild(command, environment_of(os.environ), self._take_line)
            self._exit = await self._child.start()
            await self._serving(self._exit)
            note_served(self._directory, cookie)
        return self._plan.member.endpoint

    async def ended(self) -> str:
        """Wait until etcd has ended without ``stop``, and return why."""
        assert self._exit is not None, "it was started"
        assert self._child is not None, "it was started"
        await asyncio.wait([self._exit])
        if self._is_stopped or self._is_retiring:
            await asyncio.Event().wait()  # the caller of stop or retire ends this process
        return self._why()

    async def permit(self, is_joining: bool) -> None:
        """Permit the member to begin on an empty disk. A disk with its cookie is left as it is.

        Args:
            is_joining: the other members serve, and have added this one as new; leftovers on the disk are deleted.

        Raises:
            ConflictError: the disk is another member's.
        """
        await run_to_completion(self._prepare(is_joining))
        self._permitted.set()

    async def _prepare(self, is_joining: bool) -> None:
        own = (self._plan.membership.cluster_id, self._plan.name)
        async with self._disk:
            if is_joining and self._exit is None:
                await asyncio.to_thread(_make_empty, self._directory, *own)
            if check_cookie(self._directory, *own) is None:
                write_cookie(self._directory, MemberCookie(*own, is_joining=is_joining))

    async def retire(self, is_retiring: bool) -> None:
        """Choose whether the actor outlives an etcd that ends by itself, as a member that left the list does."""
        self._is_retiring = is_retiring

    async def etcd_pid(self) -> int:
        assert self._child is not None, "it was started"
        return self._child.pid

    async def stop(self) -> None:
        """End etcd in good order. Idempotent; the member does not serve again in this process."""
        self._is_stopped = True
        if self._exit is None or self._child is None:
            return
        self._child.signal(signal.SIGTERM)
        await asyncio.wait([self._exit], timeout=STOP_SECONDS)
        if not self._exit.done():
            self._child.signal(signal.SIGKILL)
            await asyncio.wait([self._exit])

    async def erase(self) -> None:
        """Stop the member and delete its data.

        Raises:
            OSError: it could not be deleted. Call again.
        """
        await self.stop()
        await run_to_completion(self._erase())

    async def _erase(self) -> None:
        async with self._disk:
            await asyncio.to_thread(erase, self._directory)

    async def _cookie(self) -> MemberCookie:
        own = (self._plan.membership.cluster_id, self._plan.name)
        cookie = check_cookie(self._directory, *own)
        if cookie is None:
            try:
                await asyncio.wait_for(self._permitted.wait(), PERMIT_SECONDS)
            except TimeoutError:
                raise ConflictError(f"{self._directory} is empty: {replacement_of(self._plan.name)}") from None
            cookie = check_cookie(self._directory, *own)
        assert cookie is not None, "the permission has written it"
        return cookie

    async def _serving(self, ended: asyncio.Future[int]) -> None:
        """Wait until the member serves.

        Raises:
            ResourceError: it ended before.
        """
        from heliograph.metadata.etcd_member.survey import survey  # it loads grpc, which no other part needs

        url = self._plan.membership.store_url(self._plan.tls)
        address = EtcdAddress.parse(url)
        own = address.endpoints[self._plan.membership.members.index(self._plan.member)]
        alone = EtcdAddress((own,), tls=address.tls)
        while not ended.done():
            if (await survey(alone)).members[0].is_serving:
                return
            await asyncio.wait([ended], timeout=POLL_SECONDS)
        raise ResourceError(self._why())

    def _why(self) -> str:
        assert self._exit is not None, "it was started"
        code = self._exit.result()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"etcd ended by {how}" + (f": {self._last_words}" if self._last_words else "")

    def _take_line(self, line: str) -> None:
        """Log a line that etcd wrote. Called on another thread."""
        level, text = text_of(line)
        if level in SERIOUS and text:
            self._last_words = text[:LAST_WORDS_MAX]
        quiet.warning("etcd", "etcd: %s", text)


def _make_empty(directory: Path, cluster_id: str, name: str) -> None:
    """Delete the leftovers on the disk of a member that its cluster has replaced.

    Raises:
        ConflictError: the disk is another member's, or has no cookie.
    """
    cookie = read_cookie(directory)
    if cookie is None or (cookie.cluster_id, cookie.name) != (cluster_id, name):
        check_cookie(directory, cluster_id, name)
        return
    erase(directory)

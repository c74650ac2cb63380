"""The audit log: who changed, read or was refused what, from where, and with what outcome; one JSON object a line.

Refusals, which strangers can cause at will, have a file and a part of the queues of their own: however many come, every
success is kept. A line is given to a thread that writes a file, and to a task that publishes to a topic. Neither is
waited for: what comes faster than they can take it is dropped and counted, and the next line tells how many were (I15).
docs/operations describes the fields.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from heliograph.auth.config import AuditConfig
from heliograph.auth.principal import Principal
from heliograph.base.clock import iso_time, wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import AuthenticationError, HeliographError, NotPermittedError
from heliograph.base.guard.line_file import LineFile
from heliograph.base.guard.token_bucket import TokenBucket
from heliograph.operations.table import AdminOperation

TEXT_CHARACTERS_MAX = 200  # of one argument, and of the reason of an error
ARGUMENTS_MAX = 20
BATCH_LINES_MAX = 500  # published at once
BATCH_SECONDS = 0.2  # in which further lines join a batch
RETRY_SECONDS = 5.0  # after the topic took nothing
RECENT_LINES_MAX = 500  # kept for the console, refusals included  # I15
REFUSED = "-refused"  # in the name of the file of refusals
LOGIN = "login"  # the operation of a caller that is not let in

# Operations that change nothing and show no message, and ``publish``, which is not administration: their refusals are
# noted, no other use.
_READS = """
    lookup bundle_of partitions list_topics topic_properties topic_record topic_stats topic_internal_stats
    compaction_status topic_history subscriptions ledger_ranges topic_ledgers publish
    schemas.get schemas.versions schemas.check schemas.version_of
    cursors.backlog_size cursors.analyze_backlog cursors.properties cursors.message_id_at cursors.last_message_id
    namespaces.tenants namespaces.tenant namespaces.list namespaces.policies namespaces.properties
    namespaces.topic_policies permissions.granted permissions.of_namespace permissions.of_topic
    permissions.of_subscriptions permissions.subscription_mode permissions.revoked_tokens
    brokers.list brokers.loads brokers.bundles brokers.owned brokers.topics brokers.configuration
    brokers.check_quotas settings.live bookies.racks
"""
READS = frozenset(_READS.split())

log = logging.getLogger(__name__)

Publish = Callable[[str, list[bytes]], Awaitable[Any]]


class AuditLog:
    """The audit log of one broker. All calls on one event loop, which is never blocked.

    Args:
        broker_id: named in each line, and in the file's name for ``{broker_id}``.

    Attributes:
        recent: the latest lines, refusals too, since this process began.
        dropped_total: lines for which a queue, the disk or the topic had no room.
        publish: publishes to the topic of the configuration; None until the broker serves.
    """

    def __init__(self, config: AuditConfig, broker_id: str) -> None:
        self.dropped_total = 0
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_LINES_MAX)
        self.publish: Publish | None = None
        self._config = config
        self.is_enabled = bool(config.file or config.topic)  # lines go somewhere; if not, none is made
        self._broker_id = broker_id
        self._refusals = TokenBucket(config.refusals_per_second, time.monotonic())
        self._untold = 0  # lines dropped since the last one that was kept
        self._file = self._refused = None
        if config.file:
            path = Path(config.file.replace("{broker_id}", broker_id))
            self._file = _lines_file(config, path, self._lost_on_disk)
            refused = path.with_name(f"{path.stem}{REFUSED}{path.suffix}")
            self._refused = _lines_file(config, refused, self._lost_on_disk)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[bytes] = deque()  # for the topic
        self._wake = asyncio.Event()
        self._publishing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write and to publish."""
        self._loop = asyncio.get_running_loop()
        for file in filter(None, (self._file, self._refused)):
            file.start()
        if self._config.topic:
            self._publishing = self._loop.create_task(self._publish_all())

    async def stop(self) -> None:
        """Write what waits for the file; what waits for the topic is tried once more. Idempotent."""
        await end_task(self._publishing)
        self._publishing = None
        for file in filter(None, (self._file, self._refused)):
            await asyncio.to_thread(file.stop)

    def operation(
        self,
        principal: Principal,
        operation: AdminOperation,
        arguments: Mapping[str, Any],
        error: BaseException | None,
        *,
        peer: str = "",
        seconds: float = 0.0,
    ) -> None:
        """Note that an operation was run, or was refused.

        Args:
            error: the error that it raised; None for success.
            peer: address of the caller, if it is known.
            seconds: how long it took.
        """
        if not self.is_enabled:
            return
        if isinstance(error, NotPermittedError):
            self.refusal(principal, operation.name, _target(operation, arguments), peer, error)
        elif operation.name not in READS or arguments.get("may_create"):
            rest = {name: value for name, value in arguments.items() if name != operation.target and value is not None}
            target = _target(operation, arguments)
            self.change(principal, operation.name, target, rest, error, peer=peer, seconds=seconds)

    def change(
        self,
        principal: Principal,
        what: str,
        target: str,
        arguments: Mapping[str, Any],
        error: BaseException | None,
        *,
        peer: str = "",
        seconds: float = 0.0,
    ) -> None:
        """Note a change of any kind, that was made or failed, as ``operation`` does."""
        if self.is_enabled:
            outcome = {"outcome": "done"} if error is None else {"outcome": "failed", **_error(error)}
            self._note({**_caller(principal, peer), "operation": what, "target": _cut(target),
                        "arguments": _shown(arguments), **outcome, "ms": round(seconds * 1000)})  # fmt: skip

    def creation(self, principal: Principal, topic: str, peer: str, partitions: int = 0) -> None:
        """Note that a topic was created because a client used it, without being asked for by an operation."""
        if self.is_enabled:
            fields = {"operation": "create_topic", "target": _cut(topic), "outcome": "done"}
            arguments = {"partitions": str(partitions), "automatic": "True"}
            self._note({**_caller(principal, peer), **fields, "arguments": arguments})

    def reading(self, principal: Principal, command: str, target: str, peer: str) -> None:
        """Note that an administrator began to read a topic that it was not granted."""
        if self.is_enabled:
            fields = {"operation": command, "target": _cut(target), "outcome": "done"}
            self._note({**_caller(principal, peer), **fields})

    def login_refused(self, peer: str, method: str, reason: str) -> None:
        """Note that a caller was not let in; within the rate of refusals."""
        nobody = Principal("", method=_cut(method))
        self.refusal(nobody, LOGIN, "", peer, AuthenticationError(reason))

    def refusal(self, principal: Principal, what: str, target: str, peer: str, error: BaseException) -> None:
        """Note that a caller was refused something. Refusals above the rate of the configuration are counted only."""
        if not self.is_enabled:
            return
        now = time.monotonic()
        if self._refusals.wait(now) > 0:
            self._lost(1)
            return
        self._refusals.take(1, now)
        fields = {"operation": what, "target": _cut(target), "outcome": "refused", **_error(error)}
        self._note({**_caller(principal, peer), **fields}, is_refusal=True)

    def _note(self, fields: dict[str, Any], *, is_refusal: bool = False) -> None:
        line = {"time": iso_time(wall_ms()), "broker": self._broker_id, **fields}
        if self._untold:
            line["dropped"], self._untold = self._untold, 0
        self.recent.append(line)
        data = json.dumps(line, ensure_ascii=True, default=str, separators=(",", ":")).encode()
        file = self._refused if is_refusal else self._file
        if file is not None and not file.put(data):
            self._lost(1)
        if self._config.topic:
            if len(self._waiting) >= self._config.lines_max // (2 if is_refusal else 1):
                self._lost(1)
            else:
                self._waiting.append(data)
                self._wake.set()

    def _lost(self, count: int) -> None:
        self.dropped_total += count
        self._untold += count

    def _lost_on_disk(self, count: int) -> None:
        assert self._loop is not None, "the file is started by the loop"
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._lost, count)

    async def _publish_all(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(BATCH_SECONDS)
            self._wake.clear()
            while self._waiting:
                batch = [self._waiting[place] for place in range(min(len(self._waiting), BATCH_LINES_MAX))]
                if not await self._publish_batch(batch):
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                for _ in batch:
                    self._waiting.popleft()

    async def _publish_batch(self, batch: list[bytes]) -> bool:
        if self.publish is None:
            return False
        try:
            await self.publish(self._config.topic, batch)
        except HeliographError as error:
            log.warning("%d lines of the audit log wait: %s takes none: %s", len(self._waiting), self._config.topic,
                        error)  # fmt: skip
            return False
        return True


def _lines_file(config: AuditConfig, path: Path, on_lost: Callable[[int], None]) -> LineFile:
    return LineFile(
        path,
        bytes_max=config.file_bytes_max,
        files_max=config.files_max,
        lines_max=config.lines_max,
        on_lost=on_lost,
        on_failure=lambda error: log.error("the audit log %s cannot be written: %s", path, error),
    )


def _caller(principal: Principal, peer: str) -> dict[str, Any]:
    found: dict[str, Any] = {"role": principal.role, "method": principal.method}
    if principal.via:
        found["via"] = principal.via
    if principal.is_internal:
        found["internal"] = True
    return {**found, "peer": peer}


def _target(operation: AdminOperation, arguments: Mapping[str, Any]) -> str:
    """Return the target of an operation; of a subscription or bundle also the topic or namespace that has it."""
    names = [name for name in ("namespace", "topic") if name in arguments and name != operation.target]
    found = [arguments.get(name) for name in (*names, operation.target) if name]
    return _cut(" ".join(str(value) for value in found if value is not None))


def _shown(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {name: _cut(str(value)) for name, value in list(arguments.items())[:ARGUMENTS_MAX]}


def _error(error: BaseException) -> dict[str, str]:
    return {"error": type(error).__name__, "reason": _cut(str(error))}


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 3] + "..."

"""One instance of a processor: the owners of its share of the partitions, in one process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from heliograph.base.completion import end_task, shielded
from heliograph.base.errors import (
    Advice,
    BadRequestError,
    ConflictError,
    HeliographError,
    ProducerFencedError,
)
from heliograph.processors import changelog
from heliograph.processors.logic import Logic
from heliograph.processors.owner import PartitionOwner
from heliograph.processors.registry import ProcessorRecord, Registry
from heliograph.processors.user_log import UserLog

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.processors.options import ProcessorOptions

REPORT_SECONDS = 5.0  # between two reports of what an instance does
AGAIN_SECONDS = 1.0  # before a partition that failed is begun again

log = logging.getLogger(__name__)


class ProcessorInstance:
    """Runs the partitions ``p`` with ``p % instances == number`` until it is stopped, deleted or superseded.

    Args:
        make: Makes the handlers, once this is known to be needed. Its errors are in the report.
        number: Of this instance; None: it runs all partitions.
        deployment: The deployment that it belongs to: it ends when a later one is recorded.
    """

    def __init__(
        self,
        client: AsyncClient,
        options: ProcessorOptions,
        make: Callable[[], Logic],
        number: int | None,
        deployment: str,
    ) -> None:
        self._client = client
        self._options = options
        self._make = make
        self._number = number
        self._deployment = deployment
        self._registry = Registry(client, options.namespace)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="heliograph-processor")
        self._user_log = UserLog(client, options.topic("log"), options.name)
        self._owners: dict[int, PartitionOwner] = {}
        self._error: str | None = None
        self._stopping = asyncio.Event()
        self._reported = (time.monotonic(), 0)  # when, and how many messages had been handled

    async def run(self) -> None:
        """Handle messages until ``stop``, until the processor is deleted or until a later deployment has taken over.

        Raises:
            ConflictError: The inputs have other numbers of partitions than the changelog, or a cycle of topics shows.
            ProducerFencedError: Another process of the same deployment runs these partitions now.
            HeliographError: An error that trying again does not end.
        """
        try:
            await self._registry.open()
            if self._is_current(self._registry.record(self._options.name)):  # else nothing is made for it any more
                await self._work()
        finally:
            await shielded(self._close())

    async def _work(self) -> None:
        try:
            logic = self._make()
            partitions = await prepare(self._client, self._options)
            unfollow = self._registry.follow(self._options.name, self._on_record)
            self._on_record(self._registry.record(self._options.name))
            reporting = asyncio.create_task(self._report())
            try:
                async with asyncio.TaskGroup() as running:
                    for partition in self._share(partitions):
                        running.create_task(self._run_partition(partition, logic))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
            finally:
                await end_task(reporting)
                await unfollow()
        except ProducerFencedError:
            raise  # another process is this instance now, and reports
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
            self._stopping.set()
            await self._send_report()
            raise
        await self._send_report()

    def stop(self) -> None:
        """Make ``run`` commit the handled messages, and end."""
        self._stopping.set()
        for owner in self._owners.values():
            owner.stop()

    async def _close(self) -> None:
        await self._user_log.end()
        await self._registry.close()
        self._threads.shutdown(wait=False)

    def _share(self, partitions: int) -> list[int]:
        if not partitions:
            return [-1] if self._number in (None, 0) else []
        return [each for each in range(partitions) if self._number in (None, each % self._options.instances)]

    async def _run_partition(self, partition: int, logic: Logic) -> None:
        """Own a partition; begin again after a failure of the cluster."""
        while not self._stopping.is_set():
            owner = PartitionOwner(
                self._client,
                self._options,
                logic,
                partition,
                check_output=self._check_output,
                threads=self._threads,
                user_log=self._user_log.logger,
            )
            self._owners[partition] = owner
            self._steer(owner)
            try:
                await owner.run()
            except ProducerFencedError:
                if await self._is_superseded():
                    return
                raise
            except HeliographError as error:
                if error.advice is Advice.STOP and isinstance(error, BadRequestError | ConflictError):
                    raise
                self._error = str(error)
                log.warning("partition %d of %s begins again: %s", partition, self._options.name, error)
                try:
                    await asyncio.wait_for(self._stopping.wait(), AGAIN_SECONDS)
                except TimeoutError:
                    continue

    async def _is_superseded(self) -> bool:
        await self._registry.records()
        return not self._is_current(self._registry.record(self._options.name))

    def _is_current(self, record: ProcessorRecord | None) -> bool:
        return record is not None and record.deployment == self._deployment

    def _on_record(self, record: ProcessorRecord | None) -> None:
        if not self._is_current(record):
            self.stop()
        for owner in self._owners.values():
            self._steer(owner)

    def _steer(self, owner: PartitionOwner) -> None:
        record = self._registry.record(self._options.name)
        owner.pause(is_paused=record is not None and record.is_paused)
        if self._stopping.is_set():
            owner.stop()

    async def _check_output(self, topic: str) -> None:
        if topic != self._options.topic("letters"):
            await self._registry.add_outputs(self._options.name, [topic])

    # -- what it says of itself

    @property
    def _name(self) -> str:
        return "all" if self._number is None else str(self._number)

    def figures(self) -> dict[str, Any]:
        """Return the counters of this instance since it began."""
        owners = list(self._owners.values())
        return {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "deployment": self._deployment,
            "partitions": sorted(max(0, owner.partition) for owner in owners),
            "handled": sum(owner.figures.handled for owner in owners),
            "failures": sum(owner.figures.failures for owner in owners),
            "letters": sum(owner.figures.letters for owner in owners),
            "late": sum(owner.state.late for owner in owners),
            "groups": sum(owner.figures.groups for owner in owners),
            "keys": sum(len(owner.state) for owner in owners),
            "restore_seconds": max((owner.figures.restore_seconds for owner in owners), default=0.0),
            "is_restored": all(owner.figures.is_restored for owner in owners),
            "is_running": not self._stopping.is_set(),
            "error": self._error,
        }

    async def _report(self) -> None:
        while True:
            await self._send_report()
            await asyncio.sleep(REPORT_SECONDS)

    async def _send_report(self) -> None:
        said, now = self.figures(), time.monotonic()
        (since, handled), self._reported = self._reported, (now, said["handled"])
        said["rate"] = max(0.0, (said["handled"] - handled) / max(0.001, now - since))
        try:
            record = self._registry.record(self._options.name)
            await self._registry.report(self._options.name, self._name, None if record is None else said)
        except HeliographError as error:
            log.debug("the report of %s is not stored: %s", self._options.name, error)


async def prepare(client: AsyncClient, options: ProcessorOptions) -> int:
    """Create the changelog and the subscriptions of a processor, if they are missing.

    Returns:
        The partitions of each input, 0 for none.

    Raises:
        ConflictError: The inputs have different numbers of partitions, or another one than the changelog.
    """
    counts: dict[str, int] = {}
    for topic in options.inputs:
        subscribing = client.consumer(
            topic, options.name, type="shared", receiver_queue=0, initial_position=options.start
        )
        async with subscribing:  # which creates the subscription, and the topic
            counts[topic] = await client.partitions(topic)
    if len(set(counts.values())) > 1:
        raise ConflictError(f"the inputs have different numbers of partitions: {_shown(counts)}", field="inputs")
    partitions = counts[options.inputs[0]]
    found = await changelog.prepare(client, options.topic("state"), partitions)
    if found != partitions:
        raise ConflictError(
            f"the state of {options.name} has {found} partitions, its inputs have {partitions}: keys would be "
            "away from their states",
            field="inputs",
        )
    return partitions


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{topic} {count}" for topic, count in counts.items())

"""The sink of Ray Data: a write task publishes the rows of its blocks, and answers with their number."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink, WriteResult
from typing_extensions import override

from heliograph.pipelines.writing.table_writer import TableWriter

log = logging.getLogger(__name__)


class TopicDatasink(Datasink[int]):
    """Publishes rows.

    With a writer that has a write identity, a write task that runs again publishes only those of its rows that an
    earlier run did not: the number of the task and of the row in it are what the topic deduplicates by. Without one, it
    publishes all of them again.

    There is nothing to commit: rows are durable, and consumers see them, before their task ends. So a failed write
    leaves the rows of the tasks that ended, and of the others the first ones.

    Attributes:
        rows: how many rows are stored, once the write is complete.
    """

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self.rows = 0

    @override
    def get_name(self) -> str:
        return "HeliographTopic"

    @override
    def write(self, blocks: Iterable[Block], ctx: Any) -> int:
        return self._writer.write((BlockAccessor.for_block(block).to_arrow() for block in blocks), ctx.task_idx)

    @override
    def on_write_complete(self, write_result: WriteResult[int]) -> None:
        self.rows = sum(write_result.write_returns)

    @override
    def on_write_failed(self, error: Exception) -> None:
        named, identity = self._writer.topic or "the topics of the rows", self._writer.write_identity
        again = (
            "the same rows again under another call would be stored twice"
            if identity is None
            else f"a call with query={identity.query!r} and batch_id={identity.batch_id} stores the missing rows"
        )
        told = f"writing to {named} failed, and a part of the rows may be stored: {again}"
        log.warning("%s: %s", told, error)
        error.add_note(told)

"""A topic's record with the pieces of its chain, as only its owner writes them: in one write, so that neither is ever
without the other (I9, I12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from heliograph.actors.broker.records.owned_record import OwnedRecord
from heliograph.actors.broker.records.topic_chain import (
    SHARED_LEDGERS_MAX,
    fold,
    is_foldable,
    rows_of,
    with_head_dropped,
    with_head_expanded,
)
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata import paths
from heliograph.metadata.chain_records import ChainPiece
from heliograph.metadata.codec import PIECES_VERSION, encode
from heliograph.metadata.errors import NodeExistsError, NoNodeError
from heliograph.metadata.model import BrokerRegistration, LedgerInfo, TopicRecord, Versioned
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import Create, Delete, MetadataStore, Operation, Set

_NEXT_LEDGER = LedgerInfo(1 << 62, 1 << 62, 1 << 62, 1 << 62)  # as large as a row gets


class OwnedTopicRecord(OwnedRecord[TopicRecord]):
    """The owner's copy of a topic's record. A record with too many ledgers is folded before it is written."""

    def __init__(self, store: MetadataStore, path: str, versioned: Versioned[TopicRecord]) -> None:
        super().__init__(store, path, versioned)
        self._head: tuple[int, list[LedgerInfo]] | None = None  # of the oldest piece: its number, and its ledgers

    @override
    async def replace(self, record: TopicRecord, also: Sequence[Operation] = ()) -> None:
        folded, created = await self._folded(record)
        creations: list[Operation] = [Create(self._piece(number), encode(piece)) for number, piece in created.items()]
        while True:
            try:
                await super().replace(folded, [*creations, *also])
                return
            except NodeExistsError as error:  # a node that no record names: of a backup that was made meanwhile
                at = (error.operation_index or 0) - 1
                if not (0 <= at < len(creations) and isinstance(creations[at], Create)):
                    raise
                stale = creations[at]
                assert isinstance(stale, Create), "only a creation finds a node"
                creations[at] = Set(stale.path, stale.value)

    async def check_room(self, record: TopicRecord) -> None:
        """Check that ``record`` may name one more ledger, before that is created (I23).

        Raises:
            RecordTooLargeError: it may not.
        """
        folded, _ = await self._folded(replace(record, ledgers=(*record.ledgers, _NEXT_LEDGER)))
        encode(folded, self.path)

    async def piece(self, number: int) -> ChainPiece:
        """Read a piece.

        Raises:
            ServiceNotReadyError: it is gone: trimmed meanwhile, or another broker owns the topic.
        """
        return await read_piece(self._store, self.path, number)

    async def head(self) -> list[LedgerInfo]:
        """Return the oldest ledgers of the chain: of its oldest piece, or of the record if it has no pieces.
        Must not overlap with ``replace``, which it may call."""
        while self.record.pieces:
            ref = self.record.pieces[0]
            if self._head is not None and self._head[0] == ref.number:
                return [info for info in self._head[1] if info.ledger_id >= ref.first_id]
            piece = await self.piece(ref.number)
            if ref.level == 1:
                self._head = (ref.number, rows_of(ref, piece))
                return self._head[1]
            await self.replace(with_head_expanded(self.record, piece), [Delete(self._piece(ref.number))])
        return list(self.record.ledgers)

    async def drop_head(self, record: TopicRecord, head: Sequence[LedgerInfo], count: int) -> None:
        """Store ``record`` without its ``count`` oldest ledgers. A piece of which nothing is left is deleted.

        Args:
            head: as ``head`` returned it.
        """
        if not count:
            await self.replace(record)
            return
        gone = [Delete(self._piece(record.pieces[0].number))] if record.pieces and count == len(head) else []
        await self.replace(with_head_dropped(record, head, count), gone)

    def _piece(self, number: int) -> str:
        return paths.chain_piece(self.path, number)

    async def _folded(self, record: TopicRecord) -> tuple[TopicRecord, dict[int, ChainPiece]]:
        if not is_foldable(record):
            return record, {}
        if not record.pieces and len(record.ledgers) <= SHARED_LEDGERS_MAX and not await self._all_read_pieces():
            return record, {}
        return fold(record)

    async def _all_read_pieces(self) -> bool:
        """Return whether no broker of an earlier release is there, which could not serve the topic any more."""
        try:
            for name in await self._store.children(paths.BROKERS_AVAILABLE):
                found = (await read(self._store, paths.broker_available(name), BrokerRegistration)).record
                if found.reads_records < PIECES_VERSION:
                    return False
        except NoNodeError:
            return True
        except HeliographError:
            return False  # not known: the next write asks again
        return True


async def read_piece(store: MetadataStore, topic_path: str, number: int) -> ChainPiece:
    """Read a piece of a topic's chain.

    Raises:
        ServiceNotReadyError: it is gone: the record changed since it was read.
    """
    path = paths.chain_piece(topic_path, number)
    try:
        return (await read(store, path, ChainPiece)).record
    except NoNodeError:
        raise ServiceNotReadyError(f"{path} was trimmed meanwhile, try again") from None

"""Answers with the beginnings of entries, for readers that count messages: payloads stay with the bookie."""

from __future__ import annotations

from heliograph.actors.bookie.store.payloads import EntryPayload
from heliograph.actors.errors import BookieStorageError, EntryDamagedError
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES, decode_entry, encode_entry
from heliograph.actors.wire.frame import decode_batch, encode_batch
from heliograph.actors.wire.messages import HEAD_BYTES


def heads_of(stored: EntryPayload) -> EntryPayload:
    """Return the body of a batch with payloads that are cut after HEAD_BYTES, up to the first damaged entry.

    The checksum of each whole entry is compared here, because its reader cannot do so. An entry that is cut gets the
    checksum of what is left.

    Raises:
        BookieStorageError: the first entry is damaged.
    """
    heads: list[bytes | memoryview] = []
    for data in decode_batch(b"".join(stored.pieces)):
        try:
            entry = decode_entry(data)
        except EntryDamagedError as error:
            if not heads:
                raise BookieStorageError(f"a stored entry is damaged: {error}") from error
            break
        if len(data) <= ENTRY_HEADER_BYTES + HEAD_BYTES:
            heads.append(data)
        else:
            cut = entry.payload[:HEAD_BYTES]
            heads.append(encode_entry(entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, cut))
    return EntryPayload((encode_batch(heads),))

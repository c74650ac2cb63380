"""The format of an entry, which the broker stores unchanged (docs/formats-pulsar.md).

    u16 magic 0x0e01 | u32 CRC32C of the rest | u32 length of the metadata | MessageMetadata | payload

Magic and checksum may be absent on input. The payload of an entry whose metadata has ``num_messages_in_batch`` (even
of 1) is a batch, which is compressed as one: a run of u32 length | SingleMessageMetadata | message.

A broker may put its own metadata in front: u16 magic 0x0e02 | u32 length | BrokerEntryMetadata. Every function here
that takes an entry takes one with this block as well.

A compacted ledger holds the entries that compaction kept, each behind its original position:
u8 version | u8 kind | i64 ledger id | i64 entry id | the entry, perhaps with some of its messages emptied.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from itertools import islice

import crc32c
from google.protobuf.message import DecodeError

from heliograph.base.errors import BadRequestError, ChecksumError, ProtocolError, UnsupportedError
from heliograph.protocol.compression import UNCOMPRESSED_BYTES_MAX, compress, decompress
from heliograph.protocol.pulsar_pb2 import NONE, BrokerEntryMetadata, MessageMetadata, SingleMessageMetadata

ENTRY_MAGIC = 0x0E01
ENTRY_MESSAGES_MAX = 1 << 20  # of one entry: acknowledgements have a bit for each  # I15
BATCHED_BYTES_MIN = 6  # of a message in a batch: its length, and metadata with the size of its payload
IDS_MESSAGES_MAX = 4_000  # of a batch whose sequence ids are read in 20 ms; clients pack 1000 by default
IDS_BYTES_MAX = 8 << 20  # the same, after decompression
UNPACK_COPIES = 3  # of a payload at most, while it is unpacked: the buffer, its bytes, and what is made of them
BROKER_METADATA_MAGIC = 0x0E02
BROKER_METADATA_BYTES_MAX = 50  # of the block that a broker puts in front: head 6, numbers of 11, 11, 12 and 10
NO_BROKER_METADATA = BrokerEntryMetadata()  # of entries without the block; must not be changed

KEPT_VERSION = 1  # of a record in a compacted ledger
KEPT = 1  # kind of a record that holds an entry of the topic

_MAGIC = struct.Struct(">H")
_KEPT_HEAD = struct.Struct(">BBqq")
_HEAD = struct.Struct(">HII")
_BROKER_HEAD = struct.Struct(">HI")
_U32 = struct.Struct(">I")
_CHECKED_FROM = 6  # the checksum covers everything from here on
_METADATA_START = _HEAD.size  # in an entry with a checksum and without broker metadata

_crc = crc32c.crc32c
# protobuf reads any buffer; its stubs only allow bytes
_parse: Callable[[memoryview], MessageMetadata] = MessageMetadata.FromString  # type: ignore[assignment]

_OUT = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
EMPTIED = _U32.pack(len(_OUT)) + _OUT  # in a batch in the place of a message that its consumer does not get


def encode_entry(metadata: MessageMetadata, payload: bytes) -> bytes:
    """Return the entry of a ``payload`` that is already batched and compressed."""
    packed = metadata.SerializeToString()
    length = _U32.pack(len(packed))
    checksum = _crc(payload, _crc(packed, _crc(length)))
    return b"".join((_HEAD.pack(ENTRY_MAGIC, checksum, len(packed)), packed, payload))


def encode_broker_metadata(metadata: BrokerEntryMetadata) -> bytes:
    """Return the block that a broker puts in front of an entry, at most ``BROKER_METADATA_BYTES_MAX`` bytes."""
    packed = metadata.SerializeToString()
    return _BROKER_HEAD.pack(BROKER_METADATA_MAGIC, len(packed)) + packed


def broker_metadata_size(section: bytes | memoryview) -> int:
    """Return the size in bytes of the broker's block in front of an entry, 0 if there is none.

    Raises:
        ProtocolError: the block is cut short.
    """
    if len(section) < 2 or _MAGIC.unpack_from(section)[0] != BROKER_METADATA_MAGIC:
        return 0
    if len(section) < _BROKER_HEAD.size:
        raise ProtocolError("broker metadata is cut short", field="entry")
    size: int = _BROKER_HEAD.size + _BROKER_HEAD.unpack_from(section)[1]
    if size > len(section):
        raise ProtocolError("broker metadata is longer than its entry", field="entry")
    return size


def broker_metadata_of(section: bytes | memoryview) -> BrokerEntryMetadata:
    """Return the broker's metadata of an entry; ``NO_BROKER_METADATA`` if there is none.

    Raises:
        ProtocolError: the block cannot be read.
    """
    size = broker_metadata_size(section)
    if not size:
        return NO_BROKER_METADATA
    return broker_metadata_in(section, size)


def broker_metadata_in(section: bytes | memoryview, size: int) -> BrokerEntryMetadata:
    """Return the broker's metadata of an entry whose block has ``size`` bytes. Raises as ``broker_metadata_of``."""
    try:
        return BrokerEntryMetadata.FromString(bytes(section[_BROKER_HEAD.size : size]))
    except DecodeError as error:
        raise ProtocolError(f"broker metadata cannot be read: {error}", field="entry") from error


def verify(section: bytes | memoryview) -> None:
    """Compare an entry with its checksum, which covers nothing of the broker's metadata. An entry without a checksum
    passes.

    Raises:
        ChecksumError: the bytes are damaged.
        ProtocolError: the entry is cut short.
    """
    view = memoryview(section)
    _verify(view, broker_metadata_size(view))


def _verify(view: memoryview, start: int) -> None:
    if not _has_checksum(view, start):
        return
    if len(view) < start + _HEAD.size:
        raise ProtocolError("an entry is cut short", field="entry")
    (expected,) = _U32.unpack_from(view, start + 2)
    if _crc(view[start + _CHECKED_FROM :]) != expected:
        raise ChecksumError("an entry does not match its checksum")


def metadata_of(section: bytes | memoryview) -> MessageMetadata:
    """Return the metadata of an entry, without checking its checksum.

    Raises:
        ProtocolError: the bytes are not an entry.
    """
    return split(section)[0]


def split(section: bytes | memoryview) -> tuple[MessageMetadata, memoryview]:
    """Return the metadata and the stored payload of an entry, without checking its checksum.

    Raises:
        ProtocolError: the bytes are not an entry.
    """
    view = memoryview(section)
    if len(view) >= _METADATA_START:  # as in ``parse``
        magic, _, length = _HEAD.unpack_from(view)
        if magic == ENTRY_MAGIC:
            return _metadata_in(view, _METADATA_START, length), view[_METADATA_START + length :]
    return _split(view, broker_metadata_size(view))


def checked(section: bytes | memoryview) -> tuple[MessageMetadata, memoryview]:
    """Compare an entry with its checksum; return its metadata and its stored payload.

    Raises:
        ChecksumError: the bytes are damaged.
        ProtocolError: the bytes are not an entry.
    """
    view = memoryview(section)
    total, start = len(view), 0
    if total >= _METADATA_START:  # as in ``parse``
        magic, checksum, length = _HEAD.unpack_from(view)
        if magic == BROKER_METADATA_MAGIC and (start := _BROKER_HEAD.size + checksum) <= total - _METADATA_START:
            magic, checksum, length = _HEAD.unpack_from(view, start)
        end = start + _METADATA_START + length
        if magic == ENTRY_MAGIC and end <= total and _crc(view[start + _CHECKED_FROM :]) == checksum:
            try:
                return _parse(view[start + _METADATA_START : end]), view[end:]
            except DecodeError:
                pass  # what is wrong is said below
    verify(view)
    return split(view)


def received(section: memoryview) -> tuple[MessageMetadata, memoryview, BrokerEntryMetadata]:
    """Compare an entry with its checksum. Return its metadata, its stored payload and the broker's metadata, which is
    ``NO_BROKER_METADATA`` if there is none.

    Raises:
        ChecksumError: the bytes are damaged.
        ProtocolError: the bytes are not an entry, or the broker's metadata cannot be read.
    """
    if len(section) >= _METADATA_START:  # as in ``parse``
        magic, checksum, length = _HEAD.unpack_from(section)
        end = _METADATA_START + length
        if magic == ENTRY_MAGIC and end <= len(section) and _crc(section[_CHECKED_FROM:]) == checksum:
            try:
                return _parse(section[_METADATA_START:end]), section[end:], NO_BROKER_METADATA
            except DecodeError:
                pass  # what is wrong is said below
    verify(section)
    return (*split(section), broker_metadata_of(section))


def parse(section: bytes | memoryview, *, check: bool) -> tuple[MessageMetadata, int]:
    """Return the metadata of an entry, and the size in bytes of the broker's block in front of it.

    Args:
        check: compare the entry with its checksum first.

    Raises:
        ChecksumError: the bytes are damaged.
        ProtocolError: the bytes are not an entry.
    """
    view = memoryview(section)
    total, start = len(view), 0
    if total >= _METADATA_START:  # of the common form, as almost every message is
        magic, checksum, length = _HEAD.unpack_from(view)
        if magic == BROKER_METADATA_MAGIC and (start := _BROKER_HEAD.size + checksum) <= total - _METADATA_START:
            magic, checksum, length = _HEAD.unpack_from(view, start)
        end = start + _METADATA_START + length
        if magic == ENTRY_MAGIC and end <= total and not (check and _crc(view[start + _CHECKED_FROM :]) != checksum):
            try:
                return _parse(view[start + _METADATA_START : end]), start
            except DecodeError:
                pass  # what is wrong is said below
    size = broker_metadata_size(view)
    if check:
        _verify(view, size)
    return _split(view, size)[0], size


def _split(view: memoryview, start: int) -> tuple[MessageMetadata, memoryview]:
    if _has_checksum(view, start):
        start += _CHECKED_FROM
    if len(view) < start + 4:
        raise ProtocolError("an entry is cut short", field="entry")
    (length,) = _U32.unpack_from(view, start)
    start += 4
    return _metadata_in(view, start, length), view[start + length :]


def _metadata_in(view: memoryview, start: int, length: int) -> MessageMetadata:
    end = start + length
    if end > len(view):
        raise ProtocolError(f"metadata of {length} bytes does not fit its entry", field="entry")
    try:
        return _parse(view[start:end])
    except DecodeError as error:
        raise ProtocolError(f"the metadata of an entry cannot be read: {error}", field="entry") from error


def _has_checksum(view: memoryview, start: int) -> bool:
    """Return whether magic and checksum stand at ``start``."""
    return len(view) >= start + 2 and bool(_MAGIC.unpack_from(view, start)[0] == ENTRY_MAGIC)


def message_count(metadata: MessageMetadata) -> int:
    """Return the number of messages in an entry, at least 1."""
    return max(1, metadata.num_messages_in_batch)


def check_count(metadata: MessageMetadata, size: int) -> None:
    """Raise BadRequestError if a batch of ``size`` bytes cannot have as many messages as it says. Consumers would wait
    for them, and stock ones read past its end."""
    count = metadata.num_messages_in_batch
    most = (metadata.uncompressed_size if is_compressed(metadata) else size) // BATCHED_BYTES_MIN
    if not 1 <= count <= most:
        raise BadRequestError(
            f"a batch of {size} bytes says that it has {count} messages",
            field="num_messages_in_batch",
            limit=f"1 to {most} messages",
        )


def is_batch(metadata: MessageMetadata) -> bool:
    """Return whether the payload is a batch. An encrypted payload is opaque, so it counts as one message."""
    return metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys


def is_compressed(metadata: MessageMetadata) -> bool:
    """Return whether the payload is compressed, also with a codec that is not known here."""
    return metadata.compression != NONE


def plain_payload(metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
    """Return the decompressed payload. An encrypted payload is returned unchanged.

    Raises:
        UnsupportedError: the codec is not known, or the payload is too large.
        ChecksumError: the payload cannot be decompressed.
    """
    return bytes(plain_view(metadata, payload))


def plain_view(metadata: MessageMetadata, payload: bytes | memoryview) -> bytes | memoryview:
    """Return what ``plain_payload`` does, without a last copy: ``payload`` itself if it is not compressed.

    Raises:
        Errors of ``plain_payload``.
    """
    if metadata.encryption_keys:
        return payload
    return decompress(metadata.compression, payload, metadata.uncompressed_size)


def iterate_batch(metadata: MessageMetadata, plain: bytes) -> Iterator[tuple[SingleMessageMetadata, bytes]]:
    """Yield the messages of a batch in order. ``plain`` comes from ``plain_payload``.

    Messages in a row with equal metadata share one object, which must not be changed.

    Raises:
        ProtocolError: the batch does not match its metadata.
    """
    position, head, single, size, total = 0, b"", SingleMessageMetadata(), 0, len(plain)
    for _ in range(metadata.num_messages_in_batch):
        if head and plain.startswith(head, position):  # length and metadata are those of the message before
            position += len(head)
        else:
            try:
                (length,) = _U32.unpack_from(plain, position)
                head = plain[position : position + 4 + length]
                single = SingleMessageMetadata.FromString(head[4:])
            except (struct.error, DecodeError) as error:
                raise ProtocolError(f"a batch cannot be read: {error}", field="entry") from error
            position += 4 + length
            size = single.payload_size
        end = position + size
        if not position <= end <= total:
            raise ProtocolError("a message of a batch does not fit its entry", field="entry")
        yield single, plain[position:end]
        position = end


def ends_of(metadata: MessageMetadata, plain: bytes | memoryview) -> array[int]:
    """Return where each message of a batch ends in its ``plain`` payload.

    Raises:
        ProtocolError: the batch does not match its metadata.
    """
    data, total, position = bytes(plain), len(plain), 0
    ends, head, size = array("I", bytes(4 * metadata.num_messages_in_batch)), b"", 0
    for place in range(metadata.num_messages_in_batch):
        if not (head and data.startswith(head, position)):  # length and metadata are not those of the message before
            single, start, _ = _message_at(data, position)
            head, size = data[position:start], single.payload_size
        position += len(head) + size
        if size < 0 or position > total:
            raise ProtocolError("a message of a batch does not fit its entry", field="entry")
        ends[place] = position
    return ends


def iterate_some(
    metadata: MessageMetadata, plain: bytes, wanted: int
) -> Iterator[tuple[int, tuple[SingleMessageMetadata, bytes]]]:
    """Yield those messages of a batch whose bits are in ``wanted``, each with its place.

    Emptied messages in a row, of which a part of a batch may have hundreds, cost as much as one.

    Raises:
        ProtocolError: the batch does not match its metadata.
    """
    at = position = 0  # of the next message, as a number and in bytes
    wanted &= (1 << metadata.num_messages_in_batch) - 1
    while wanted:
        place = (wanted & -wanted).bit_length() - 1
        while at < place:
            gap = place - at
            if plain.startswith(EMPTIED, position) and plain.startswith(EMPTIED * gap, position):
                at, position = place, position + gap * len(EMPTIED)
            else:
                at, position = at + 1, _message_at(plain, position)[2]
        single, start, position = _message_at(plain, position)
        yield place, (single, plain[start:position])
        at, wanted = place + 1, wanted & wanted - 1


def _message_at(plain: bytes, position: int) -> tuple[SingleMessageMetadata, int, int]:
    """Return the metadata of a message of a batch, and where its payload begins and ends."""
    try:
        (length,) = _U32.unpack_from(plain, position)
        start = position + 4 + length
        single = SingleMessageMetadata.FromString(plain[position + 4 : start])
    except (struct.error, DecodeError) as error:
        raise ProtocolError(f"a batch cannot be read: {error}", field="entry") from error
    end = start + single.payload_size
    if not start <= end <= len(plain):
        raise ProtocolError("a message of a batch does not fit its entry", field="entry")
    return single, start, end


def batch_messages(
    metadata: MessageMetadata, payload: bytes | memoryview
) -> Iterator[tuple[SingleMessageMetadata, bytes]] | None:
    """Return the messages of a batch one after the other; None if it cannot be read as a whole: it is encrypted,
    compressed with an unknown codec, or damaged."""
    if metadata.encryption_keys:
        return None
    try:
        plain = plain_payload(metadata, payload)
        if metadata.num_messages_in_batch <= IDS_MESSAGES_MAX:
            return iter(list(iterate_batch(metadata, plain)))
        for _ in iterate_batch(metadata, plain):  # the objects of a million messages would take 150 MB
            pass
    except (ChecksumError, ProtocolError, UnsupportedError):
        return None
    return iterate_batch(metadata, plain)


def unpacked_bytes(section: bytes | memoryview) -> int:
    """Return the bytes that are held while the payload of an entry is unpacked, and perhaps packed again; 0 if these
    bytes are no entry."""
    try:
        metadata, payload = split(section)
    except ProtocolError:
        return 0
    size = min(metadata.uncompressed_size, UNCOMPRESSED_BYTES_MAX) if is_compressed(metadata) else len(payload)
    return size * UNPACK_COPIES


def sequence_ids(section: bytes | memoryview, first: int) -> list[int] | None:
    """Return the sequence id of each message of a batch. A user may choose them; those not named count from ``first``.

    None if the batch cannot be read, or has so many messages or bytes that this would hold an event loop.
    """
    metadata, payload = split(section)
    if metadata.num_messages_in_batch > IDS_MESSAGES_MAX or metadata.uncompressed_size > IDS_BYTES_MAX:  # I15
        return None
    messages = batch_messages(metadata, payload)
    if messages is None:
        return None
    return [
        single.sequence_id if single.HasField("sequence_id") else first + place
        for place, (single, _) in enumerate(messages)
    ]


def without_first(section: bytes | memoryview, count: int, first: int) -> bytes:
    """Return a batch that ``sequence_ids`` could read without its first ``count`` messages.

    Args:
        first: the sequence id of the message that is then the first.
    """
    metadata, payload = split(section)
    messages = batch_messages(metadata, payload)
    assert messages is not None, "the batch was read before"
    assert 0 < count < metadata.num_messages_in_batch, "some messages of a batch go, and some stay"
    metadata.sequence_id = first
    packed = ((single.SerializeToString(), value) for single, value in islice(messages, count, None))
    plain = b"".join(part for head, value in packed for part in (_U32.pack(len(head)), head, value))
    metadata.num_messages_in_batch, metadata.uncompressed_size = metadata.num_messages_in_batch - count, len(plain)
    return encode_entry(metadata, compress(metadata.compression, plain))


def encode_kept(ledger_id: int, entry_id: int, section: bytes | memoryview) -> bytes:
    """Return the record of an entry that was kept, after its original position."""
    return _KEPT_HEAD.pack(KEPT_VERSION, KEPT, ledger_id, entry_id) + section


def decode_kept(data: bytes | memoryview) -> tuple[int, int, memoryview]:
    """Return the original ledger id and entry id, and the entry.

    Raises:
        ProtocolError: the record is not a kept entry, or of another version.
    """
    if len(data) < _KEPT_HEAD.size:
        raise ProtocolError("an entry of a compacted ledger is cut short", field="entry")
    version, kind, ledger_id, entry_id = _KEPT_HEAD.unpack_from(data)
    if (version, kind) != (KEPT_VERSION, KEPT):
        raise ProtocolError(
            f"found version {version}, kind {kind} in a compacted ledger, not {KEPT_VERSION}, {KEPT}", field="entry"
        )
    return ledger_id, entry_id, memoryview(data)[_KEPT_HEAD.size :]

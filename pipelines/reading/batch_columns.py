"""The messages of a batch as columns, without an object for each message where the format allows it. No I/O.

Three ways lead to the same columns (tests compare them). A batch whose messages all have one size and one form, as
sensors and most benchmarks write them, is a matrix of bytes: its columns are cut out of it at once. Otherwise the heads
of the messages are walked through, and those of the usual form (key, size, event time, sequence id) are read in place.
Whatever else is in a head is left to protobuf.
"""

from __future__ import annotations

from heliograph.pipelines.reading.batch_walk import BatchWalk
from heliograph.pipelines.reading.messages import Messages
from heliograph.pipelines.reading.uniform_batch import uniform_batch


def batch_columns(plain: bytes, count: int) -> Messages:
    """Return the messages of a batch.

    Args:
        plain: the payload of its entry, decompressed.
        count: of messages, as its entry says.

    Raises:
        ProtocolError: the bytes are not so many messages.
    """
    return uniform_batch(plain, count) or BatchWalk(plain, count).messages()

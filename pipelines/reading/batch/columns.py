"""The messages of a batch as columns, without an object for each message where the format allows it. No I/O.

Three ways lead to the same columns (tests compare them). A batch whose messages all have one size and one form, as
sensors and most benchmarks write them, is a matrix of bytes: its columns are cut out of it at once. In other batches
the heads of the usual form (key, size, event time, sequence id) are found and read all at once. Where a head has more,
the messages are walked through, and protobuf reads what is unusual.
"""

from __future__ import annotations

from heliograph.pipelines.reading.batch.messages import Messages
from heliograph.pipelines.reading.batch.uniform import uniform_batch
from heliograph.pipelines.reading.batch.varied import varied_batch
from heliograph.pipelines.reading.batch.walk import BatchWalk


def batch_columns(plain: bytes | memoryview, count: int) -> Messages:
    """Return the messages of a batch.

    Args:
        plain: the payload of its entry, decompressed. The columns may be views of it.
        count: of messages, as its entry says.

    Raises:
        ProtocolError: the bytes are not so many messages.
    """
    return uniform_batch(plain, count) or varied_batch(plain, count) or BatchWalk(bytes(plain), count).messages()

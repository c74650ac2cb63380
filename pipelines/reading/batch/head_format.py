"""The bytes of a message's head in a batch: u32 length | SingleMessageMetadata, whose fields these tags announce."""

from __future__ import annotations

import struct

KEY, SIZE, EVENT_TIME, SEQUENCE_ID = 0x12, 0x18, 0x28, 0x40
MORE = 0x80  # set in every byte of a number but the last
NUMBER_BYTES_MAX = 10
MESSAGES_MIN = 8  # in a batch: below it, building arrays costs more than walking
OFFSET_MAX = (1 << 31) - 1  # bytes in one array
length_at = struct.Struct(">I").unpack_from

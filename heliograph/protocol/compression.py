"""The compression codecs of a payload, in the formats of Pulsar's other clients: raw LZ4 blocks and raw Snappy (both
without a stored size), Zstandard frames and zlib streams."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import cramjam

from heliograph.base.errors import ChecksumError, UnsupportedError
from heliograph.protocol import pulsar_pb2 as pb

NAMES = {"none": pb.NONE, "lz4": pb.LZ4, "zlib": pb.ZLIB, "zstd": pb.ZSTD, "snappy": pb.SNAPPY}
UNCOMPRESSED_BYTES_MAX = 64 << 20  # of one entry  # I15
INLINE_BYTES_MAX = 256 << 10  # of a payload that an event loop packs or unpacks itself; a larger one gets a thread

_COMPRESS: dict[int, Callable[[bytes | bytearray], object]] = {
    pb.LZ4: lambda data: cramjam.lz4.compress_block(data, store_size=False),
    pb.ZLIB: zlib.compress,
    pb.ZSTD: cramjam.zstd.compress,
    pb.SNAPPY: cramjam.snappy.compress_raw,
}
# Each writes into a buffer of the declared size and fails where that is too small, so that a few bytes that promise
# gigabytes cost no more than what they declare. LZ4 is told the size, or it would try a size at the start of the data.
_DECOMPRESS: dict[int, Callable[[bytes | memoryview, bytearray], int]] = {
    pb.LZ4: lambda data, plain: cramjam.lz4.decompress_block_into(data, plain, len(plain)),
    pb.ZSTD: cramjam.zstd.decompress_into,
    pb.SNAPPY: cramjam.snappy.decompress_raw_into,
}


def compress(codec: int, data: bytes | bytearray) -> bytes:
    """Compress ``data``.

    Raises:
        UnsupportedError: there is no such codec.
    """
    if codec == pb.NONE:
        return data if isinstance(data, bytes) else bytes(data)
    packer = _COMPRESS.get(codec)
    if packer is None:
        raise _unknown(codec)
    packed = packer(data)
    return packed if isinstance(packed, bytes) else bytes(packed)  # type: ignore[call-overload]


def decompress(codec: int, data: bytes | memoryview, size: int) -> bytes | memoryview:
    """Decompress ``data``. Uncompressed data is returned as it is.

    Args:
        size: the uncompressed size in bytes, from the metadata. No more than that is ever unpacked.

    Raises:
        UnsupportedError: there is no such codec, or the size is above 64 MiB.
        ChecksumError: the data cannot be decompressed to ``size`` bytes.
    """
    if codec == pb.NONE:
        return data
    if size > UNCOMPRESSED_BYTES_MAX:
        raise UnsupportedError(
            f"an entry has {size} bytes after decompression", limit=f"{UNCOMPRESSED_BYTES_MAX} bytes"
        )
    if codec != pb.ZLIB and codec not in _DECOMPRESS:
        raise _unknown(codec)
    if size == 0 and not len(data):
        return b""
    try:
        plain = _unpack(codec, data, size)
    except (cramjam.DecompressionError, zlib.error, ValueError) as error:
        raise ChecksumError(f"an entry cannot be decompressed: {error}") from error
    if len(plain) != size:
        raise ChecksumError(f"an entry does not have the {size} bytes of its metadata after decompression")
    return plain


def _unpack(codec: int, data: bytes | memoryview, size: int) -> bytes | memoryview:
    if codec == pb.ZLIB:
        return zlib.decompressobj().decompress(data, size + 1)
    plain = bytearray(size)
    return memoryview(plain)[: _DECOMPRESS[codec](data, plain)]


def _unknown(codec: int) -> UnsupportedError:
    return UnsupportedError(f"there is no compression codec {codec}", field="compression")

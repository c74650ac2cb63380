"""The codecs of a payload. NONE and ZLIB are always there; the others when their library is installed."""

from __future__ import annotations

import importlib
import zlib
from typing import Any

from heliograph.errors import ChecksumError, UnsupportedError
from heliograph.protocol import pulsar_pb2 as pb

# Library behind each codec that Python does not bring along.
_LIBRARIES = {pb.LZ4: "lz4.block", pb.ZSTD: "zstandard", pb.SNAPPY: "snappy"}
NAMES = {"none": pb.NONE, "lz4": pb.LZ4, "zlib": pb.ZLIB, "zstd": pb.ZSTD, "snappy": pb.SNAPPY}
UNCOMPRESSED_BYTES_MAX = 64 << 20  # no entry may unfold to more than this


def compress(codec: pb.CompressionType, data: bytes) -> bytes:
    """``data`` packed by ``codec``.

    Raises:
        UnsupportedError: the codec's library is not installed.
    """
    if codec == pb.NONE:
        return data
    if codec == pb.ZLIB:
        return zlib.compress(data)
    library = _library(codec)
    if codec == pb.LZ4:
        return bytes(library.compress(data, store_size=False))
    if codec == pb.ZSTD:
        return bytes(library.ZstdCompressor().compress(data))
    return bytes(library.compress(data))


def decompress(codec: pb.CompressionType, data: bytes | memoryview, size: int) -> bytes:
    """What ``compress`` packed; ``size`` is the size that the metadata promises, in bytes.

    Raises:
        UnsupportedError: the codec's library is not installed, or the size is above 64 MiB.
        ChecksumError: the data does not unpack to ``size`` bytes.
    """
    if codec == pb.NONE:
        return bytes(data)
    if size > UNCOMPRESSED_BYTES_MAX:
        raise UnsupportedError("an entry unfolds to too much", limit=f"{UNCOMPRESSED_BYTES_MAX} bytes")
    try:
        plain = _unpack(codec, bytes(data), size)
    except UnsupportedError:
        raise
    except Exception as error:  # each library has its own errors
        raise ChecksumError(f"a compressed entry cannot be unpacked: {error}") from error
    if len(plain) != size:
        raise ChecksumError(f"a compressed entry unpacks to another size than the {size} bytes it promises")
    return plain


def _unpack(codec: pb.CompressionType, data: bytes, size: int) -> bytes:
    if codec == pb.ZLIB:
        return zlib.decompressobj().decompress(data, size + 1)
    library = _library(codec)
    if codec == pb.LZ4:
        return bytes(library.decompress(data, uncompressed_size=size))
    if codec == pb.ZSTD:
        return bytes(library.ZstdDecompressor().decompress(data, max_output_size=size))
    return bytes(library.decompress(data))


def _library(codec: pb.CompressionType) -> Any:
    name = _LIBRARIES[codec]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UnsupportedError(
            f"{pb.CompressionType.Name(codec)} needs the Python package {package!r}, which is not installed",
            field="compression",
        ) from error

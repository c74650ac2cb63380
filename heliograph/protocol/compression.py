"""The compression codecs of a payload. NONE and ZLIB are always available, the others if their library is installed."""

from __future__ import annotations

import importlib
import zlib
from typing import Any

from heliograph.base.errors import ChecksumError, UnsupportedError
from heliograph.protocol import pulsar_pb2 as pb

# The library of each codec that is not part of Python.
_LIBRARIES = {pb.LZ4: "lz4.block", pb.ZSTD: "zstandard", pb.SNAPPY: "snappy"}
NAMES = {"none": pb.NONE, "lz4": pb.LZ4, "zlib": pb.ZLIB, "zstd": pb.ZSTD, "snappy": pb.SNAPPY}
UNCOMPRESSED_BYTES_MAX = 64 << 20  # of one entry  # I15


def compress(codec: pb.CompressionType, data: bytes) -> bytes:
    """Compress ``data``.

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
    """Decompress ``data``.

    Args:
        size: the uncompressed size in bytes, from the metadata.

    Raises:
        UnsupportedError: the codec's library is not installed, or the size is above 64 MiB.
        ChecksumError: the data cannot be decompressed to ``size`` bytes.
    """
    if codec == pb.NONE:
        return bytes(data)
    if size > UNCOMPRESSED_BYTES_MAX:
        raise UnsupportedError(
            f"an entry has {size} bytes after decompression", limit=f"{UNCOMPRESSED_BYTES_MAX} bytes"
        )
    try:
        plain = _decompress(codec, bytes(data), size)
    except UnsupportedError:
        raise
    except Exception as error:  # each library has its own errors
        raise ChecksumError(f"an entry cannot be decompressed: {error}") from error
    if len(plain) != size:
        raise ChecksumError(f"an entry does not have the {size} bytes of its metadata after decompression")
    return plain


def _decompress(codec: pb.CompressionType, data: bytes, size: int) -> bytes:
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

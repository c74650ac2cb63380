"""Writing and reading past the page cache: aligned memory, and what happens where that cannot be."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES, BlockBuffer, own_memory, up_to_block
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.store.payloads import PART_BYTES, READ_BUFFER_BYTES, EntryPayload, ReadBuffer


def address_of(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_memory_is_on_block_boundaries() -> None:
    buffer = ReadBuffer()
    taken = [buffer.take(size) for size in (1, 5000, BLOCK_BYTES, READ_BUFFER_BYTES)]
    assert [address_of(memory) % BLOCK_BYTES for memory in (*taken, own_memory(3))] == [0] * 5
    assert [len(memory) for memory in taken] == [1, 5000, BLOCK_BYTES, READ_BUFFER_BYTES]
    assert [up_to_block(size) for size in (0, 1, BLOCK_BYTES, BLOCK_BYTES + 1)] == [0, 4096, 4096, 8192]
    for number, memory in enumerate(taken):
        memory[:] = bytes([number]) * len(memory)
    assert [set(memory) for memory in taken] == [{0}, {1}, {2}, {3}], "nobody shares memory"


def test_a_buffer_grows_and_keeps_what_it_is_asked_to() -> None:
    buffer = BlockBuffer(100)
    buffer.memory[:5] = b"first"
    view = buffer.view(5)  # as an error on its way still holds one
    buffer.reserve(3 * BLOCK_BYTES, kept=5)
    assert bytes(view) == b"first"
    assert bytes(buffer.view(5)) == b"first"
    assert len(buffer.memory) >= 3 * BLOCK_BYTES


@pytest.mark.parametrize("has_huge_pages", [True, False])
def test_a_large_buffer_is_on_block_boundaries_and_keeps_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_huge_pages: bool
) -> None:
    if not has_huge_pages:
        monkeypatch.setattr("mmap.MADV_HUGEPAGE", -1)  # which the kernel refuses
    buffer = BlockBuffer(1 << 20)
    content = bytes(range(256)) * (len(buffer.memory) // 256)
    buffer.memory[:] = content
    buffer.reserve(9 << 20, kept=len(content))
    assert address_of(buffer.whole) % BLOCK_BYTES == 0
    assert bytes(buffer.view(len(content))) == content
    file = RealDisk().open(tmp_path / "file", create=True, is_direct=True)
    file.write_durably(0, buffer.view(8 << 20))
    file.close()
    assert (tmp_path / "file").read_bytes() == content + bytes(7 << 20)


def test_a_fork_neither_copies_a_large_buffer_nor_changes_what_a_read_fills() -> None:
    buffer = BlockBuffer(BLOCK_BYTES)
    buffer.reserve(4 << 20)
    place = address_of(buffer.whole)
    flags = next(flags for start, end, flags in mappings() if start <= place < end)
    assert "sh" in flags or "dc" in flags, "shared, or not in a child"


def mappings() -> Iterator[tuple[int, int, list[str]]]:
    """Yield the mappings of this process: start, end, flags of the kernel."""
    start = end = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if name == "VmFlags:":
            yield start, end, rest
        elif "-" in name and not name.endswith(":"):
            start, end = (int(number, 16) for number in name.split("-"))


def test_what_goes_past_the_cache_is_read_back_either_way(tmp_path: Path) -> None:
    path = tmp_path / "file"
    buffer = BlockBuffer(3 * BLOCK_BYTES)
    buffer.memory[:] = bytes(range(256)) * (len(buffer.memory) // 256)
    file = RealDisk().open(path, create=True, is_direct=True)
    file.write_at(BLOCK_BYTES, buffer.view(3 * BLOCK_BYTES))
    file.sync()
    memory = own_memory(8 * BLOCK_BYTES)
    assert file.read_into(0, memory) == 4 * BLOCK_BYTES, "to the end of the file"
    assert bytes(memory[: 4 * BLOCK_BYTES]) == bytes(BLOCK_BYTES) + buffer.memory[:] == path.read_bytes()
    file.close()


@pytest.mark.parametrize("offset", [0, 3])
def test_where_alignment_does_not_suit_the_disk_the_cache_is_used(tmp_path: Path, offset: int) -> None:
    """Behave as a device whose blocks are larger than ours."""
    file = RealDisk().open(tmp_path / "file", create=True, is_direct=True)
    file.write_at(offset, b"not a block")
    file.close()
    again = RealDisk().open(tmp_path / "file", is_direct=True)
    memory = memoryview(bytearray(12))[1:]
    assert again.read_into(offset, memory) == 11
    assert bytes(memory) == b"not a block"
    again.close()


def test_a_body_is_cut_into_parts_and_given_back_once() -> None:
    released: list[int] = []
    pieces: list[bytes | memoryview] = [b"a" * (PART_BYTES - 1), b"", memoryview(b"b" * (2 * PART_BYTES + 5)), b"c"]
    body = EntryPayload(pieces, lambda: released.append(1))
    parts = list(body.parts())
    assert b"".join(parts) == b"".join(pieces)
    assert body.size == sum(map(len, pieces))
    assert [len(part) for part in parts[:-1]] == [PART_BYTES] * (len(parts) - 1)
    assert all(type(part) is bytes for part in parts), "copies: the memory may be used again"
    for skipped in (0, 1, PART_BYTES, body.size - 1, body.size):
        assert b"".join(body.parts(skipped)) == b"".join(pieces)[skipped:]
    body.release()
    body.release()
    assert released == [1]

"""The files of a checkpoint: in a directory of this machine, or on a file system of pyarrow or fsspec.

A file is replaced as a whole, and durable when ``write`` returns: synced in a directory, stored by an object store, and
closed and renamed elsewhere, which is as durable as that file system makes it.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from heliograph.base.errors import BadRequestError, ConflictError, ResourceError, UnsupportedError

# A directory, a URI such as ``s3://bucket/name``, or a file system of pyarrow or fsspec with a path in it.
CheckpointPlace: TypeAlias = "str | Path | tuple[Any, str]"

OWNER = "owner"
_REPLACED_AS_A_WHOLE = ("s3", "gcs", "abfs")  # pyarrow's names of object stores: an object has one content at a time


class CheckpointFiles(Protocol):
    """The files of one checkpoint, by their names."""

    def read(self, name: str) -> str | None:
        """Return the text of a file, None if there is none. Raises ResourceError."""

    def write(self, name: str, text: str) -> None:
        """Store a file durably, in place of an older one. Raises ResourceError."""

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""

    def names(self) -> list[str]:
        """Return the names of all files; none if the place does not exist."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Own the checkpoint for a block. Raises ConflictError if another stream does, and ResourceError."""
        yield

    def check_owner(self) -> None:
        """Do nothing if this process still owns the checkpoint. Raises ConflictError."""


def files_of(place: CheckpointPlace) -> CheckpointFiles:
    """Return the files at a place, which need not exist.

    Raises:
        BadRequestError: it is no place.
        UnsupportedError: nothing that is installed knows the scheme of its URI.
    """
    if isinstance(place, Path) or (isinstance(place, str) and "://" not in place):
        return LocalFiles(Path(place))
    if isinstance(place, str):
        if place.startswith("file://"):
            return LocalFiles(Path(place.removeprefix("file://")))
        return StoredFiles(*_found_by_uri(place), place)
    if isinstance(place, tuple) and len(place) == 2 and isinstance(place[1], str):
        file_system = _as_pyarrow(place[0])
        return StoredFiles(file_system, place[1], f"{file_system.type_name}:{place[1]}")
    raise BadRequestError(
        f"{place!r:.200} is no place of a checkpoint",
        field="checkpoint",
        limit="a directory, a URI, or (file system, path)",
    )


def _found_by_uri(uri: str) -> tuple[Any, str]:
    from pyarrow import ArrowException, fs

    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(uri)
        return found
    except (ArrowException, ValueError) as error:
        told = error
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UnsupportedError(
            f"pyarrow does not open {uri} ({told}); file systems of other schemes need the Python package 'fsspec'",
            field="checkpoint",
        ) from told
    try:
        file_system, path = url_to_fs(uri)
    except (ImportError, ValueError, OSError) as error:
        raise UnsupportedError(f"fsspec does not open {uri}: {error}", field="checkpoint") from error
    return _as_pyarrow(file_system), path


def _as_pyarrow(given: Any) -> Any:
    from pyarrow import fs

    if isinstance(given, fs.FileSystem):
        return given
    if not (hasattr(given, "open") and hasattr(given, "protocol")):
        raise BadRequestError(f"{given!r:.200} is no file system of pyarrow or fsspec", field="checkpoint")
    return fs.PyFileSystem(fs.FSSpecHandler(given))


class LocalFiles:
    """A directory of this machine, or of a mounted disk; the kernel holds its lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __str__(self) -> str:
        return str(self._directory)

    def read(self, name: str) -> str | None:
        file = self._directory / name
        try:
            return file.read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ResourceError(f"{file} cannot be read: {error.strerror}", field="checkpoint") from error

    def write(self, name: str, text: str) -> None:
        file = self._directory / name
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            temporary = file.with_name(f".{name}.new")
            with temporary.open("w") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, file)
            directory = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise ResourceError(f"{file} cannot be used: {error.strerror}", field="checkpoint") from error

    def delete(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        return [file.name for file in self._directory.glob("*")]

    @contextmanager
    def locked(self) -> Iterator[None]:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = (self._directory / "lock").open("w")
        except OSError as error:
            raise ResourceError(
                f"checkpoint {self._directory} cannot be written: {error.strerror}", field="checkpoint"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConflictError(f"another stream runs on checkpoint {self._directory}") from None
            yield

    def check_owner(self) -> None:
        """Do nothing: the kernel holds the lock."""


class StoredFiles:
    """A path of a file system of pyarrow. The stream that starts last owns it; the others end with ConflictError."""

    def __init__(self, file_system: Any, path: str, shown: str) -> None:
        self._fs = file_system
        self._path = path.rstrip("/")
        self._shown = shown
        self._owner = uuid.uuid4().hex

    def __str__(self) -> str:
        return self._shown

    def read(self, name: str) -> str | None:
        try:
            with self._fs.open_input_stream(self._at(name)) as file:
                return cast("bytes", file.read()).decode()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # pyarrow's errors are among these
            raise ResourceError(f"{self._shown}/{name} cannot be read: {error}", field="checkpoint") from error

    def write(self, name: str, text: str) -> None:
        is_whole = self._fs.type_name in _REPLACED_AS_A_WHOLE
        first = self._at(name if is_whole else f".{name}.new")
        try:
            if not is_whole:
                self._fs.create_dir(self._path, recursive=True)
            with self._fs.open_output_stream(first) as out:
                out.write(text.encode())
            if not is_whole:
                self._fs.move(first, self._at(name))
        except (OSError, ValueError, NotImplementedError) as error:
            raise ResourceError(f"{self._shown}/{name} cannot be written: {error}", field="checkpoint") from error

    def delete(self, name: str) -> None:
        try:
            self._fs.delete_file(self._at(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ResourceError(f"{self._shown}/{name} cannot be deleted: {error}", field="checkpoint") from error

    def names(self) -> list[str]:
        from pyarrow import fs

        try:
            return [
                info.base_name for info in self._fs.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
            ]
        except (OSError, ValueError) as error:
            raise ResourceError(f"checkpoint {self._shown} cannot be read: {error}", field="checkpoint") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        self.write(OWNER, self._owner)
        yield

    def check_owner(self) -> None:
        if self.read(OWNER) != self._owner:
            raise ConflictError(f"another stream has taken over checkpoint {self._shown}")

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

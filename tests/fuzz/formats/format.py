"""One format that holds bytes of clients, and what is tried with it. The same seed tries the same.

A client stores contents that are the format's own files, records and frames, made in two rounds: first with plain
contents, then with pieces of that image as contents. What is read back of the image, sound or damaged, is what was
stored, or is refused by the errors that the format names; nothing else appears (I19).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import ClassVar

from tests.hostile_bytes import mixture

CONTENT_BYTES_MAX = 3_000
DAMAGES = 6  # of each kind, for a seed
SECTOR_BYTES = 512
FORGED = b"forged"


class WrongContentError(AssertionError):
    """A format was read as something that nobody stored."""


class Form(enum.Enum):
    """How an image comes into being, which says what damage may leave of it."""

    VALUE = enum.auto()  # replaced as a whole: all of it is read, or it is refused
    LOG = enum.auto()  # written from its begin on, so a crash leaves a beginning
    REUSED = enum.auto()  # the same over an older image of clients' contents
    STREAM = enum.auto()  # frames of a connection, which may end anywhere


class Format(ABC):
    """One format.

    Attributes:
        name: for reports.
        headings: of ``docs/formats*.md`` that describe it.
        form: how an image comes into being.
        refusals: the errors that say that an image cannot be read.
        is_checked: a flipped bit is noticed, by this format or the one that carries it.
        contents_max: how many contents an image takes.
        reads_anything: bytes of a client may be in the place of an image.
        durable_bytes: of the begin of an image, which are there before anything else is written (REUSED).
    """

    name: ClassVar[str]
    headings: ClassVar[tuple[str, ...]] = ()
    form: ClassVar[Form]
    refusals: ClassVar[tuple[type[Exception], ...]]
    is_checked: ClassVar[bool] = True
    contents_max: ClassVar[int] = 6
    reads_anything: ClassVar[bool] = True
    durable_bytes: ClassVar[int] = 0

    def __init__(self, random: Random) -> None:
        self.random = random

    def fit(self, content: bytes) -> bytes:
        """Return what a client can store of some bytes."""
        return content[:CONTENT_BYTES_MAX]

    def pieces(self) -> list[bytes]:
        """Return bytes of the format that an image does not begin with."""
        return []

    @abstractmethod
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        """Return the image with these contents, in the place of the image ``old``."""

    @abstractmethod
    def read(self, image: bytes) -> list[bytes]:
        """Return the contents of an image."""

    def may_find(self, stored: Sequence[bytes], found: Sequence[bytes]) -> bool:
        """Whether these contents may be read of a damaged image."""
        if self.form is Form.VALUE:
            return found == stored
        return list(found) == list(stored)[: len(found)]


def examine(kind: type[Format], seed: int) -> int:
    """Store, damage and read contents of a seed; return how many images were read.

    Raises:
        WrongContentError: something else was read than was stored.
    """
    random = Random(f"{kind.name} {seed}")
    form = kind(random)
    plain = [form.fit(b"%s %d " % (FORGED, number) * 5) for number in range(min(3, kind.contents_max))]
    forged = form.write(plain, b"")
    nested = form.write(_contents(form, [forged, *form.pieces()]), forged)
    own = [forged, nested, *form.pieces()]
    stored = _contents(form, own)
    image = form.write(stored, nested)
    if (found := form.read(image)) != stored:
        raise WrongContentError(f"{kind.name}, seed {seed}: {stored!r:.300} is read as {found!r:.300}")
    tried = 1
    for what, damaged in _damaged(form, image, nested, own):
        tried += 1
        with suppress(*kind.refusals):
            found = form.read(damaged)
            if not form.may_find(stored, found):
                raise WrongContentError(f"{kind.name}, seed {seed}, {what}: {stored!r:.300} is read as {found!r:.300}")
    for content in stored if kind.reads_anything else []:
        tried += 1
        with suppress(*kind.refusals):
            form.read(content)
    return tried


def _contents(form: Format, own: Sequence[bytes]) -> list[bytes]:
    """Return contents of pieces of the format, some of them from the middle, and of a bookie's files."""
    random = form.random
    contents = []
    for _ in range(random.randint(1, form.contents_max)):
        content = b""
        for _ in range(random.randint(1, 3)):
            piece = random.choice([*own, mixture(random, 600, range(9))])
            start = random.choice((0, 0, random.randrange(len(piece) + 1)))
            end = random.choice((len(piece), len(piece), random.randrange(start, len(piece) + 1)))
            content += bytes(random.choice((0, 0, 1, 4, 40))) + piece[start:end]
        contents.append(form.fit(content))
    return contents


def _damaged(form: Format, image: bytes, old: bytes, own: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield what a crash, a disk or a network may make of an image, and what that was."""
    random, size = form.random, len(image)
    for _ in range(DAMAGES):
        cut = random.randrange(size + 1)
        yield f"cut off at {cut} of {size}", image[:cut]
    for _ in range(DAMAGES if form.is_checked else 0):
        at = random.randrange(size)
        flipped = bytes([image[at] ^ 1 << random.randrange(8)])
        yield f"bit flipped at {at} of {size}", image[:at] + flipped + image[at + 1 :]
        start = random.randrange(size) // SECTOR_BYTES * SECTOR_BYTES
        end = min(size, start + SECTOR_BYTES)
        yield f"sector lost at {start} of {size}", image[:start] + bytes(end - start) + image[end:]
        at = random.randrange(1, size)
        piece = random.choice(own)[: size - at]
        yield f"other content at {at} of {size}", image[:at] + piece + image[at + len(piece) :]
    if form.form is Form.VALUE:
        for content in own:
            yield "another image behind", image + content
    if form.form is Form.REUSED:
        for cut in range(form.durable_bytes, size, SECTOR_BYTES):
            yield f"written up to {cut} of {size}", image[:cut] + old[cut:]

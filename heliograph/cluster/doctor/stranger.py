"""Attempts of a stranger: connections without credentials to each door of a cluster, and the answers.

As root, they are made by a child process of another user, which also tries Unix sockets and files. A door counts as
closed only if an attempt reached it and was refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from heliograph.actors.wire.frame import BookieFrameDecoder, decode_answer, encode_request
from heliograph.actors.wire.greeting import hello
from heliograph.actors.wire.messages import BookieOp, BookieRequest, Status
from heliograph.base.errors import HeliographError
from heliograph.base.guard.local_socket import socket_name
from heliograph.metadata.backends.embedded.protocol import (
    MAGIC,
    OK,
    EmbeddedFrameDecoder,
    EmbeddedOp,
    encode_frame,
    greeting_version,
)
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command

NOBODY = 65_534  # the user of the attempts, if this process may choose one
DOORS_MAX = 64  # I15
ANSWER_SECONDS = 2.0  # for each attempt
SESSION_MS = 1_000  # of a metadata session that should not have been given
REPLY_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class PartDoor:
    """One address of a part, as the cluster's report gives it."""

    part: str
    kind: str
    address: str

    @property
    def is_tls(self) -> bool:
        return self.address.startswith(("tls://", "pulsar+ssl://", "https://", "etcds://", "embeddeds://"))

    @property
    def place(self) -> tuple[str, int]:
        found = urlsplit(self.address if "://" in self.address else f"//{self.address}")
        return found.hostname or "", found.port or 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome at one door or file.

    Attributes:
        given: the answer that the stranger got; empty: none.
        refusal: how it was refused; empty with ``given`` empty: the door was not reached.
    """

    part: str
    kind: str
    target: str
    given: str = ""
    refusal: str = ""


def attempts(doors: Sequence[PartDoor], files: Iterable[Path] = ()) -> tuple[int, list[Attempt]]:
    """Try doors and files; return the user that tried, and the outcomes. Blocks for some seconds at each silent door.

    Files, and Unix sockets of parts, are tried only where this process may become another user. Root of a container
    may not, if the container has no other users.
    """
    tried = doors[:DOORS_MAX]
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            return NOBODY, _as_nobody(lambda: [*_over_all(tried), *map(_read, files)])
    return os.geteuid(), [_tried(door) for door in tried]


def _over_all(doors: Sequence[PartDoor]) -> Iterable[Attempt]:
    for door in doors:
        yield _tried(door)
        if door.kind in ("broker", "bookie") and not door.is_tls and (name := socket_name(*door.place)) is not None:
            yield _tried(door, name)


def _as_nobody(work: Callable[[], list[Attempt]]) -> list[Attempt]:
    """Run a function in a child of another user; what it returns comes back as text."""
    reading, writing = os.pipe()
    child = os.fork()  # no program is run: another user may not be able to read this one's files
    if child == 0:
        try:
            os.close(reading)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            with os.fdopen(writing, "w") as file:
                json.dump([asdict(each) for each in work()], file)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    if not text:
        raise OSError(f"the child of uid {NOBODY} ended without an answer")
    return [Attempt(**each) for each in json.loads(text)]


def _read(path: Path) -> Attempt:
    """Try to list a directory, or to read a file."""
    try:
        found = f"{len(os.listdir(path))} names" if path.is_dir() else f"{len(path.read_bytes())} bytes"
    except FileNotFoundError:
        return Attempt("", "file", str(path))
    except OSError as error:
        return Attempt("", "file", str(path), refusal=error.strerror or str(error))
    return Attempt("", "file", str(path), given=found)


def _tried(door: PartDoor, unix_name: bytes | None = None) -> Attempt:
    """Try one door; ``unix_name``: by the Unix socket of that abstract name."""
    target = door.address if unix_name is None else f"{door.address} (Unix socket)"
    tried = Attempt(door.part, door.kind, target)
    try:
        connection = _connected(door, unix_name)
    except ConnectionRefusedError:
        return tried
    except (OSError, ValueError) as error:
        return _refused(tried, str(error)) if isinstance(error, ssl.SSLError) else tried
    with connection:
        try:
            given, refusal = _PROBES[door.kind](connection)
        except (OSError, ValueError, HeliographError) as error:
            given, refusal = "", str(error) or type(error).__name__
    return Attempt(door.part, door.kind, target, given, "" if given else refusal or "the connection ended")


def _refused(tried: Attempt, refusal: str) -> Attempt:
    return Attempt(tried.part, tried.kind, tried.target, refusal=refusal)


def _connected(door: PartDoor, unix_name: bytes | None) -> socket.socket:
    if unix_name is not None:
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.settimeout(ANSWER_SECONDS)
        unix.connect(unix_name)
        return unix
    plain = socket.create_connection(door.place, ANSWER_SECONDS)
    if not door.is_tls:
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # a stranger does not care who answers
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def _bookie(connection: socket.socket) -> tuple[str, str]:
    """Greet without a secret and ask for statistics, as a client of a bookie without a secret may."""
    connection.sendall(encode_request(hello()) + encode_request(BookieRequest(BookieOp.STATISTICS, 1)))
    decoder, deadline = BookieFrameDecoder(), time.monotonic() + ANSWER_SECONDS
    refusal = ""
    while data := _received(connection, deadline):
        for header, _ in decoder.feed(data):
            answer = decode_answer(header)
            if answer.request_id == 1 and answer.status is Status.OK:
                return "its statistics, as every reader and writer of entries", ""
            refusal = answer.status.name.lower()
    return "", refusal


def _metadata(connection: socket.socket) -> tuple[str, str]:
    """Open a session without a secret, and list the root."""
    version = greeting_version(with_release=True)
    frames = ([1, EmbeddedOp.HELLO, MAGIC, version, SESSION_MS, 0, ""], [2, EmbeddedOp.CHILDREN, "/", 0])
    connection.sendall(b"".join(map(encode_frame, frames)))
    decoder, deadline = EmbeddedFrameDecoder(), time.monotonic() + ANSWER_SECONDS
    refusal = ""
    while data := _received(connection, deadline):
        for request_id, code, *rest in decoder.feed(data):
            if request_id == 2 and code == OK:
                return "a session that reads and changes all metadata", ""
            refusal = str(rest[0][0]) if code != OK else ""
    return "", refusal


def _broker(connection: socket.socket) -> tuple[str, str]:
    """Connect without credentials."""
    connect = pb.CommandConnect(client_version="helio doctor", protocol_version=19)
    connection.sendall(encode_command(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect)))
    decoder, deadline = PulsarFrameDecoder(), time.monotonic() + ANSWER_SECONDS
    while data := _received(connection, deadline):
        for command, *_ in decoder.feed(data):
            if command.type == pb.BaseCommand.CONNECTED:
                return "a connection without credentials", ""
            if command.type == pb.BaseCommand.ERROR:
                return "", command.error.message
    return "", ""


def _gateway(connection: socket.socket) -> tuple[str, str]:
    return _http(connection, "GET /admin/v2/clusters HTTP/1.1", b"", "answers to administration")


def _etcd(connection: socket.socket) -> tuple[str, str]:
    """Ask etcd for one key, in its form of JSON over HTTP."""
    body = b'{"key":"AA==","range_end":"AA==","limit":"1","keys_only":true}'
    return _http(connection, "POST /v3/kv/range HTTP/1.1", body, "all metadata")


def _http(connection: socket.socket, line: str, body: bytes, given: str) -> tuple[str, str]:
    head = f"{line}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
    reply, deadline = b"", time.monotonic() + ANSWER_SECONDS
    while b"\r\n" not in reply and (data := _received(connection, deadline)):
        reply += data
    status = reply.partition(b"\r\n")[0].decode("latin-1")
    return (given, "") if status.startswith("HTTP/1.1 200") else ("", status)


def _received(connection: socket.socket, deadline: float) -> bytes:
    """Return the next bytes; none at the end of the stream, or after the deadline."""
    with contextlib.suppress(TimeoutError):
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        return connection.recv(REPLY_BYTES_MAX) if time.monotonic() < deadline else b""
    return b""


_PROBES: dict[str, Callable[[socket.socket], tuple[str, str]]] = {
    "bookie": _bookie,
    "metadata": _metadata,
    "etcd": _etcd,
    "broker": _broker,
    "gateway": _gateway,
}

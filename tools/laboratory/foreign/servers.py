"""The servers, each with settings by which it syncs what it acknowledges."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from heliograph.cluster.ports import pick_free
from tests.bench.machine import ROOT
from tools.laboratory.foreign.protocols.connection import Publisher, Reader
from tools.laboratory.foreign.protocols.kafka import KafkaPublisher, KafkaReader
from tools.laboratory.foreign.protocols.nats import NatsPublisher, NatsReader
from tools.laboratory.foreign.protocols.redis import RedisPublisher, RedisReader

UP_SECONDS_MAX = 120.0
END_SECONDS_MAX = 20.0
KAFKA_PROJECT = ROOT / "tests" / "clients" / "zookeeper" / "kafka"
KAFKA_ID = "bench-bench-bench-bench"[:22]
NATS_SETTINGS = """
port: {port}
jetstream {{ store_dir: "{directory}", sync_interval: always }}
"""
KAFKA_SETTINGS = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={directory}
log.flush.interval.messages=1
log.retention.ms=-1
auto.create.topics.enable=true
num.partitions=1
default.replication.factor=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class Unavailable(Exception):
    """A server cannot be run here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ForeignServer:
    """A running server: its version, its process, and what makes connections to it.

    Attributes:
        publisher: takes the name of the stream.
        reader: takes the name of the stream, and the number of messages to read.
    """

    version: str
    pid: int
    port: int
    publisher: Callable[[str], Publisher]
    reader: Callable[[str, int], Reader]


@contextmanager
def redis(directory: Path) -> Iterator[ForeignServer]:
    """Run Redis; its append-only file is synced before the answers of each turn of its loop.

    Raises:
        Unavailable: it is not installed.
    """
    program = _found("redis-server", "apt-get install redis-server")
    version = _said(program, "--version").split("v=")[-1].split()[0]
    port = pick_free()
    options = ["--port", port, "--bind", "127.0.0.1", "--dir", directory, "--appendonly", "yes", "--appendfsync"]
    with _running([program, *map(str, options), "always", "--save", ""], directory, port) as pid:
        yield ForeignServer(version, pid, port, RedisPublisher, RedisReader)


@contextmanager
def nats(directory: Path) -> Iterator[ForeignServer]:
    """Run NATS with JetStream; each message is synced.

    Raises:
        Unavailable: it is not installed, or too old to sync each message.
    """
    program = _found("nats-server", "apt-get install nats-server, or nats-server of its own releases on PATH")
    version = _said(program, "--version").rpartition("v")[2].strip()
    port, settings = pick_free(), directory / "nats.conf"
    settings.write_text(NATS_SETTINGS.format(port=port, directory=directory / "jetstream"))
    checked = subprocess.run([program, "-c", settings, "-t"], capture_output=True, text=True, check=False)
    if checked.returncode:
        raise Unavailable(f"nats-server {version} knows no `sync_interval: always`, 2.10 does: put a newer one on PATH")
    with _running([program, "-c", str(settings)], directory, port) as pid:
        yield ForeignServer(version, pid, port, NatsPublisher, NatsReader)


@contextmanager
def kafka(directory: Path) -> Iterator[ForeignServer]:
    """Run a Kafka that is its own controller; each message is flushed.

    Raises:
        Unavailable: Java or Maven is missing, or Maven Central cannot be reached.
    """
    from tests.clients.support.maven import build

    try:
        project = build(KAFKA_PROJECT)
    except pytest.skip.Exception as why:
        raise Unavailable(str(why)) from None
    port, controller, settings = pick_free(), pick_free(), directory / "server.properties"
    settings.write_text(KAFKA_SETTINGS.format(port=port, controller=controller, directory=directory / "log"))
    quiet = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-Xmx1g")
    formatted = project.command("kafka.tools.StorageTool", "format", "-t", KAFKA_ID, "-c", str(settings), options=quiet)
    ran = subprocess.run(formatted, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Unavailable(f"Kafka's directory cannot be made: {(ran.stdout + ran.stderr).strip()[-300:]}")
    command = [word for word in project.command("kafka.Kafka", str(settings), options=quiet) if "Tiered" not in word]
    jar = next(part for part in project.class_path.split(":") if "/kafka_2.13-" in part)
    with _running(command, directory, port) as pid:
        yield ForeignServer(Path(jar).stem.rpartition("-")[2], pid, port, KafkaPublisher, KafkaReader)


def _found(program: str, advice: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise Unavailable(f"{program} is not installed: {advice}")
    return found


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextmanager
def _running(command: Sequence[str], directory: Path, port: int) -> Iterator[int]:
    """Run a server until the end of the block; yield its process id once its port is open."""
    with (
        (directory / "output").open("wb") as output,
        subprocess.Popen(list(command), cwd=directory, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait_for(process, port, directory / "output")
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + UP_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise Unavailable(f"the server did not start: {output.read_text(errors='replace').strip()[-300:]}")

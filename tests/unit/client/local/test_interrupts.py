"""Callers that an exception interrupts while they receive, and handles that are used while the process ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import heliograph
from heliograph.base import errors

pytestmark = pytest.mark.slow

SECONDS = 30


class TimeLimitError(Exception):
    """Raised by the signal handler of these tests."""


class Signalling(heliograph.ConsumerInterceptor):
    """Interrupts the main thread when certain messages are on their way to it."""

    def __init__(self, *values: bytes) -> None:
        self.values = set(values)

    def before_consume(self, message: heliograph.Message) -> heliograph.Message:
        if message.value in self.values:
            self.values.discard(message.value)
            identity = threading.main_thread().ident
            assert identity is not None
            signal.pthread_kill(identity, signal.SIGUSR1)
        return message


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGUSR1 raise TimeLimitError in the main thread."""

    def interrupt(*_: Any) -> None:
        raise TimeLimitError

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", ["exclusive", "shared", "reader"])
@pytest.mark.parametrize("many", [False, True])
def test_an_interrupted_receive_loses_nothing(
    client: heliograph.Client, interrupts: None, kind: Any, many: bool
) -> None:
    topic = f"interrupted-{kind}-{many}"
    values = [b"%d" % number for number in range(6)]
    client.producer(topic).send_many(values)
    interceptor = Signalling(b"1", b"4")
    receiver: heliograph.Consumer | heliograph.Reader
    if kind == "reader":
        receiver = client.reader(topic, "earliest", interceptors=[interceptor])
    else:
        receiver = client.consumer(topic, "s", type=kind, initial_position="earliest", interceptors=[interceptor])
    received: list[bytes] = []
    interrupted = 0
    with receiver:
        while len(received) < len(values):
            try:
                found = receiver.receive_many(2, SECONDS) if many else [receiver.receive(SECONDS)]
            except TimeLimitError:
                interrupted += 1
                continue
            assert found, "nothing came"
            received += [message.value for message in found]
    assert interrupted == 2
    assert received == values


def test_what_a_seek_leaves_behind_is_not_handed_out(client: heliograph.Client, interrupts: None) -> None:
    client.producer("sought").send_many([b"0", b"1"])
    with client.reader("sought", "earliest", interceptors=[Signalling(b"1")]) as reader:
        assert reader.receive(SECONDS).value == b"0"
        with pytest.raises(TimeLimitError):
            reader.receive(SECONDS)
        reader.seek("earliest")
        assert [reader.receive(SECONDS).value for _ in range(2)] == [b"0", b"1"]


SCRIPTS = {
    "atexit, registered first": """
import atexit
atexit.register(lambda: producer.send("bye"))
import heliograph
client = heliograph.connect({url!r})
producer = client.producer("exit-1").open()
""",
    "a future of an earlier call": """
import atexit
atexit.register(lambda: future.result())
import heliograph
client = heliograph.connect({url!r})
future = client.consumer("exit-2", "s")._start(client.aio().session())
consumer = client.consumer("exit-2", "t")
future = consumer._start(consumer._async().receive())
""",
    "__del__ of a global": """
import heliograph
class Owner:
    def __init__(self):
        self.client = heliograph.connect({url!r})
        self.producer = self.client.producer("exit-3").open()
    def __del__(self):
        self.producer.close()
        self.client.close()
owner = Owner()
""",
    "the first use of all": """
import atexit
atexit.register(lambda: heliograph.connect({url!r}).producer("exit-4").send("x"))
import heliograph
""",
    "logging.shutdown": """
import logging, logging.handlers
class Handler(logging.Handler):
    def emit(self, record):
        producer.send(self.format(record))
kept = logging.handlers.MemoryHandler(100, target=Handler())
logging.getLogger().addHandler(kept)
import heliograph
client = heliograph.connect({url!r})
producer = client.producer("exit-5").open()
logging.warning("kept until shutdown")
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_process_that_uses_handles_in_its_exit_hooks_ends(cluster: heliograph.LocalCluster, name: str) -> None:
    script = SCRIPTS[name].format(url=cluster.service_url)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "never awaited" not in done.stderr
    if name in ("atexit, registered first", "logging.shutdown"):
        assert errors.AlreadyClosedError.__name__ in done.stderr, "the caller learns why"


@pytest.mark.parametrize(("waits", "is_told"), [("", True), ("p.flush()", False), ("p.close()", False)])
def test_a_process_that_ends_before_its_messages_are_stored_says_so(
    cluster: heliograph.LocalCluster, waits: str, is_told: bool
) -> None:
    script = f"import heliograph; p = heliograph.connect({cluster.service_url!r}).producer('cut-off')\n"
    script += f"for n in range(1000): p.send_async('x')\n{waits}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stderr.count("messages may not be stored") == is_told

"""The broker that owns a topic, killed under load, repeatedly: order holds, no acknowledged message is lost, no
confirmed acknowledgement is lost.

``python -m tests.chaos.broker --rounds 20`` prints a line for each kill and, at the end, how long publishing
stopped. Exit code 1: a promise was broken, and the directory is kept.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pulsar

from heliograph.metadata.model import NamespacePolicies
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import split
from tests.chaos.broker_cluster import BrokerProcess, ProcessCluster, process_cluster
from tests.chaos.broker_host import SESSION_TIMEOUT_MS
from tests.chaos.history import RESUME_SECONDS_MAX, Acknowledger, History, Publisher, check, wait_for_more
from tests.cluster.support.raw_peer import RawPeer

TOPIC = "chaos"
LEDGER_ENTRIES_MAX = 2_000
_T = pb.BaseCommand


def resumed(history: History, killed_at: float) -> float:
    """Return the seconds from a kill to the first receipt of a message that was sent after it."""
    deadline = killed_at + RESUME_SECONDS_MAX
    while time.monotonic() < deadline:
        known = history.confirmed_at[-1] if history.confirmed_at else 0.0
        if known > killed_at + 0.05:
            first = next(at for at in reversed(history.confirmed_at[-5_000:]) if at > killed_at + 0.05)
            after = [at for at in history.confirmed_at[-20_000:] if at > killed_at]
            return max((b - a for a, b in itertools.pairwise([killed_at, *after])), default=first - killed_at)
        time.sleep(0.01)
    raise AssertionError(f"no receipt for {RESUME_SECONDS_MAX} s after a kill")


def served_after(cluster: ProcessCluster, killed_at: float) -> float:
    """Return the seconds from a kill until a client that retries without pauses has a producer."""
    topic = f"persistent://public/default/{TOPIC}"
    while time.monotonic() < killed_at + RESUME_SECONDS_MAX:
        for broker in cluster.brokers:
            with suppress(OSError, AssertionError), RawPeer(broker.url) as peer:
                if peer.producer(topic, producer_name=f"probe-{killed_at}").type == _T.PRODUCER_SUCCESS:
                    return time.monotonic() - killed_at
        time.sleep(0.02)
    raise AssertionError(f"nobody serves the topic {RESUME_SECONDS_MAX} s after a kill")


@contextmanager
def stock_client(cluster: ProcessCluster) -> Iterator[pulsar.Client]:
    """Return a client that knows all brokers."""
    client = pulsar.Client(
        cluster.service_url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        yield client
    finally:
        client.close()


def run(folder: Path, rounds: int, seed: int, *, say: Callable[[str], None] = lambda line: None) -> History:
    """Kill the owner ``rounds`` times under load, then check everything.

    Raises:
        AssertionError: a promise was broken.
    """
    chance = random.Random(seed)
    history = History()
    policies = NamespacePolicies(ledger_entries_max=LEDGER_ENTRIES_MAX)
    with process_cluster(folder, policies) as cluster, stock_client(cluster) as client:
        # When a promise is broken, the load may never end, so it is not waited for.
        publisher = Publisher(client, TOPIC, history)
        acknowledger = Acknowledger(cluster.service_url, TOPIC, history, seed)
        for number in range(1, rounds + 1):
            wait_for_more(history, 500)
            time.sleep(chance.uniform(0.0, 1.0))
            owner = cluster.owner_of(TOPIC)
            killed_at = time.monotonic()
            acknowledger.killed_at = killed_at
            owner.kill()
            restart = threading.Thread(target=owner.start)  # as Ray restarts an actor
            restart.start()
            history.served.append(served_after(cluster, killed_at))
            history.gaps.append(resumed(history, killed_at))
            restart.join(RESUME_SECONDS_MAX)
            say(f"kill {number}: served after {history.served[-1]:.2f} s, publishing after {history.gaps[-1]:.2f} s")
        wait_for_more(history, 500)
        publisher.stop()
        acknowledger.finish(publisher.sent)
        check(client, TOPIC, history, publisher.sent)
    return history


def freeze_the_owner(folder: Path) -> None:
    """Stop the owner for longer than its session, then continue it: messages sent to it meanwhile get no receipt (I13).

    Raises:
        AssertionError: such a message was acknowledged, or is in the topic out of order.
    """
    with process_cluster(folder, NamespacePolicies()) as cluster, stock_client(cluster) as client:
        topic = f"persistent://public/default/{TOPIC}"
        client.create_producer(TOPIC).send(b"0")
        owner = cluster.owner_of(TOPIC)
        with RawPeer(owner.url) as peer:
            assert peer.producer(topic, producer_name="old").type == _T.PRODUCER_SUCCESS
            peer.publish(1, 0, b"1")
            peer.answer(_T.SEND_RECEIPT)
            assert peer.subscribe(topic, subscription="old", initial_position=1).type == _T.SUCCESS
            owner.freeze()
            for sequence_id in range(1, 6):
                peer.publish(1, sequence_id, b"late")
            peer.flow(100)
            time.sleep(1.5 * SESSION_TIMEOUT_MS / 1_000)
            other = publish_elsewhere(cluster, owner)
            owner.thaw()
            answers = []
            try:
                while True:
                    command, section = peer.next()
                    answers.append((command, section))
            except OSError:
                pass  # it closed the connection, or does not answer
            late = [command for command, _ in answers if command.type == _T.SEND_RECEIPT]
            assert late == [], f"the old owner acknowledged: {late}"
            pushed = [section for command, section in answers if command.type == _T.MESSAGE and section is not None]
            assert all(bytes(split(section)[1]) != b"late" for section in pushed)
        assert read_bytes(client)[2:] == [b"2"], f"{other.url} owns the topic"


def publish_elsewhere(cluster: ProcessCluster, frozen: BrokerProcess) -> BrokerProcess:
    """Publish at the remaining broker."""
    other = next(broker for broker in cluster.brokers if broker is not frozen)
    client = pulsar.Client(
        other.url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        client.create_producer(TOPIC).send(b"2")
    finally:
        client.close()
    return other


def read_bytes(client: pulsar.Client) -> list[bytes]:
    """Return every message of the topic."""
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(bytes(reader.read_next(30_000).data()))
    return found


def percentiles(seconds: list[float]) -> str:
    """Return median and 99th percentile as text."""
    ordered = sorted(seconds)
    return f"{statistics.median(ordered):.2f} s (p50), {ordered[int(0.99 * (len(ordered) - 1) + 0.5)]:.2f} s (p99)"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.broker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="kills")
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run; a new one without")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="heliograph-chaos-"))
    try:
        history = run(folder / "kills", arguments.rounds, seed, say=lambda line: print(line, flush=True))
        freeze_the_owner(folder / "freeze")
    except AssertionError:
        traceback.print_exc()
        print(f"BROKEN, see {folder}", flush=True)
        return 1
    shutil.rmtree(folder)
    print(
        f"{len(history.gaps)} kills, {len(history.confirmed)} publishes and {len(history.acknowledged)} "
        "acknowledgements confirmed: nothing lost, order kept, nothing confirmed came again; "
        "a frozen owner acknowledged nothing\n"
        f"until another client could be a producer: {percentiles(history.served)}\n"
        f"until the stock producer, with its pauses between attempts, had a receipt: {percentiles(history.gaps)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

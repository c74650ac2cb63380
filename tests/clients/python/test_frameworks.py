"""What frameworks for applications call of Pulsar's Python client, one feature a test."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.clients.python.user import CLIENT, EARLIEST, LONG_MS, WAIT_MS, User, numbered, texts
from tests.clients.support.report import ClientMatrix


def batch_receive(user: User) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(4, -1, 500)
    consumer = user.subscribe(pulsar.ConsumerType.Shared, batch_receive_policy=policy)
    user.publish(10)
    found: list[str] = []
    while len(found) < 10:
        messages = consumer.batch_receive()
        assert len(messages) <= 4
        for message in messages:
            consumer.acknowledge(message)
            found.append(message.data().decode())
    assert sorted(found) == sorted(numbered(10))


def listener(user: User) -> None:
    found: list[str] = []
    done = threading.Event()

    def receive(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        found.append(message.data().decode())
        if len(found) == 20:
            done.set()

    consumer = user.subscribe(message_listener=receive)
    user.publish(10)
    consumer.pause_message_listener()
    user.publish(10, first=10)
    consumer.resume_message_listener()
    assert done.wait(WAIT_MS / 1000)
    assert found == numbered(20)


def ack_timeout(user: User) -> None:
    consumer = user.subscribe(pulsar.ConsumerType.Shared, unacked_messages_timeout_ms=10_000)  # its shortest
    user.publish(1)
    consumer.receive(WAIT_MS)
    again = consumer.receive(2 * WAIT_MS)
    assert (again.data(), again.redelivery_count()) == (b"m0", 1)
    consumer.acknowledge(again)


def batch_index_ack(user: User) -> None:
    options = {"batch_index_ack_enabled": True}
    consumer = user.subscribe(pulsar.ConsumerType.Shared, **options)
    producer = user.client.create_producer(user.topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS)
    for text in numbered(6):
        producer.send_async(text.encode(), None)
    producer.flush()
    for number in range(6):
        message = consumer.receive(WAIT_MS)
        if number % 2 == 0:
            consumer.acknowledge(message)
    consumer.close()
    assert texts(user.subscribe(pulsar.ConsumerType.Shared, **options), 3) == ["m1", "m3", "m5"]


def several_topics(user: User) -> None:
    topics = [f"{user.topic}-{letter}" for letter in "ab"]
    consumer = user.client.subscribe(topics, "s", initial_position=EARLIEST)
    for topic in topics:
        user.client.create_producer(topic).send(topic.encode())
    assert sorted(texts(consumer, 2)) == topics


def regex(user: User) -> None:
    topics = [f"{user.topic}-{letter}" for letter in "ab"]
    for topic in topics:
        user.client.create_producer(topic).send(topic.encode())
    consumer = user.client.subscribe(re.compile(f"{user.topic}-.*"), "s", initial_position=EARLIEST)
    assert sorted(texts(consumer, 2)) == topics


def non_persistent(user: User) -> None:
    user.topic = user.topic.replace("persistent://", "non-persistent://")
    consumer = user.subscribe()
    user.publish(5)
    assert texts(consumer, 5) == numbered(5)


def key_ranges(user: User) -> None:
    def policy(first: int, last: int) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(first, last)])

    halves = [
        user.subscribe(pulsar.ConsumerType.KeyShared, key_shared_policy=policy(first, first + 32_767))
        for first in (0, 32_768)
    ]
    producer = user.client.create_producer(user.topic)
    for text in numbered(20):
        producer.send(text.encode(), partition_key=text)
    found: list[list[str]] = [[], []]
    deadline = time.monotonic() + WAIT_MS / 1000
    while sum(map(len, found)) < 20 and time.monotonic() < deadline:
        for own, consumer in zip(found, halves, strict=True):
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(100)
                consumer.acknowledge(message)
                own.append(message.data().decode())
    assert sorted(found[0] + found[1]) == sorted(numbered(20))
    assert all(found), "each half of the hashes has some of twenty keys"


def encryption(user: User, folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    private, public = folder / "private.pem", folder / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    reader = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = user.subscribe(crypto_key_reader=reader)
    stranger = user.client.subscribe(
        user.topic,
        "stranger",
        initial_position=EARLIEST,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    user.client.create_producer(user.topic, encryption_key="app", crypto_key_reader=reader).send(b"secret words")
    assert texts(consumer, 1) == ["secret words"]
    assert b"secret words" not in stranger.receive(WAIT_MS).data()


SCENARIOS: dict[str, Callable[[User], None]] = {
    one.__name__: one
    for one in (
        batch_receive, listener, ack_timeout, batch_index_ack, several_topics, regex, non_persistent, key_ranges,
    )
}  # fmt: skip


SLOW = {"ack_timeout"}  # the client's shortest one is ten seconds


@pytest.mark.parametrize(
    "feature", [pytest.param(name, marks=[pytest.mark.full] if name in SLOW else []) for name in SCENARIOS]
)
def test_feature(feature: str, user: User, matrix: ClientMatrix) -> None:
    with matrix.noting(CLIENT, pulsar.__version__, feature):
        SCENARIOS[feature](user)


def test_encryption(user: User, matrix: ClientMatrix, tmp_path: Path) -> None:
    with matrix.noting(CLIENT, pulsar.__version__, "encryption"):
        encryption(user, tmp_path)

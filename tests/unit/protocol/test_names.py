"""Topic names, message ids, hashes and error codes, against known values and the stock client."""

from __future__ import annotations

import pickle
import zlib

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.errors import LedgerFencedError
from heliograph.base import errors
from heliograph.base.errors import (
    STORAGE_FULL,
    THE_LIMIT,
    TOO_LARGE,
    MessageTooLargeError,
    PersistenceError,
    StorageFullError,
)
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.hashing import java_string_hash, murmur3_hash, sticky_key_hash
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.server_error import code_of, exception_of
from heliograph.protocol.topic_name import TopicName


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("flights", "persistent://public/default/flights"),
        ("a/b/c", "persistent://a/b/c"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        ("persistent://a-1/b.2/c d", "persistent://a-1/b.2/c d"),
    ],
)
def test_forms_of_topic_names(name: str, full: str) -> None:
    parsed = TopicName.parse(name)
    assert str(parsed) == full
    assert TopicName.parse(full) == parsed


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("", "topic"),
        ("a/b", "topic"),
        ("persistent://a/b", "topic"),
        ("persistent://a/b/c/d", "topic"),
        ("persistent://x", "topic"),
        ("kafka://a/b/c", "domain"),
        ("persistent:///b/c", "tenant"),
        ("persistent://a b/c/d", "tenant"),
        ("persistent://a/../d", "namespace"),
        ("persistent://a/b/ c", "topic"),
        ("persistent://a/b/c\n", "topic"),
        ("persistent://a/b/" + "x" * 256, "topic"),
        ("x" * 2000, "topic"),
    ],
)
def test_bad_topic_names_name_the_field(name: str, field: str) -> None:
    with pytest.raises(errors.InvalidTopicNameError) as caught:
        TopicName.parse(name)
    assert caught.value.field == field


def test_partitions_of_a_topic() -> None:
    topic = TopicName.parse("t")
    names = topic.partitions(2)
    assert [str(name) for name in names] == [f"persistent://public/default/t-partition-{index}" for index in (0, 1)]
    assert [TopicName.parse(str(name)).partition for name in names] == [0, 1]
    assert names[1].partitioned_name == str(topic)
    assert topic.partitions(0) == [topic]
    assert TopicName.parse("t-partition-01").partition == -1


def test_the_place_of_a_topic_is_pulsars() -> None:
    topic = TopicName.parse("t")
    assert topic.bundle_hash == zlib.crc32(b"persistent://public/default/t")


@pytest.mark.parametrize(
    ("ledger", "entry", "partition", "batch"),
    [(0, 0, -1, -1), (3, 5, 2, 7), (2**62, 2**40, 0, 0), (-1, -1, -1, -1), (2**63 - 1, 2**63 - 1, -1, -1)],
)
def test_message_ids_have_the_stock_clients_bytes(ledger: int, entry: int, partition: int, batch: int) -> None:
    stock = pulsar.MessageId(partition, ledger, entry, batch).serialize()
    ours = MessageId.from_bytes(stock)
    assert (ours.ledger_id, ours.entry_id, ours.partition, ours.batch_index) == (ledger, entry, partition, batch)
    back = pulsar.MessageId.deserialize(ours.to_bytes())
    assert pulsar.MessageId.wrap(back) == pulsar.MessageId(partition, ledger, entry, batch)


def test_known_bytes_of_a_message_id() -> None:
    assert MessageId.from_base64("CAAQAyAA") == MessageId(0, 3, -1, 0)
    assert MessageId(0, 3, -1, 0).to_base64() == "CAAQAyAA"


@given(st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1), st.integers(-1, 9), st.integers(-1, 999))
def test_message_ids_survive_every_form(ledger: int, entry: int, partition: int, batch: int) -> None:
    place = MessageId(ledger, entry, partition, batch, batch + 1)
    assert MessageId.from_base64(place.to_base64()) == place
    assert MessageId.parse(str(place)) == place
    assert MessageId.parse(str(place)).batch_size == place.batch_size
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.parametrize("text", ["", "1", "1:x", "1:2:3:4:5:6", "-2:1", "now"])
def test_bad_message_id_texts(text: str) -> None:
    with pytest.raises(errors.InvalidMessageIdError):
        MessageId.parse(text)


@pytest.mark.parametrize("text", ["!!!", "AAAA", "CAA="])
def test_bad_base64_message_ids(text: str) -> None:
    with pytest.raises(errors.InvalidMessageIdError):
        MessageId.from_base64(text)


def test_message_ids_order_as_their_messages() -> None:
    ids = [MessageId.EARLIEST, MessageId(1, 5), MessageId(2, 0, batch_index=0), MessageId(2, 0, batch_index=1)]
    assert sorted([*ids[::-1], MessageId.LATEST]) == [*ids, MessageId.LATEST]


@pytest.mark.parametrize(("key", "value"), [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0)])
def test_javas_string_hash(key: str, value: int) -> None:
    # the last one's hash code is the smallest integer, which loses its sign bit
    assert java_string_hash(key) == value


def test_javas_string_hash_counts_utf16_units() -> None:
    assert java_string_hash("\U0001f600") == (31 * 0xD83D + 0xDE00) & 0x7FFFFFFF


@given(st.binary(max_size=30))
def test_sticky_hashes_stay_on_the_ring(key: bytes) -> None:
    assert 1 <= sticky_key_hash(key) < 65536
    assert 0 <= murmur3_hash(key) < 2**31


def test_known_murmur3_value() -> None:
    assert murmur3_hash(b"hello") == 0x248BFA47


@pytest.mark.parametrize("code", pb.ServerError.values())
def test_each_code_becomes_an_error_of_the_tree_and_goes_back_as_an_equal_one(code: int) -> None:
    error = exception_of(code, "why")
    assert isinstance(error, errors.HeliographError)
    assert str(error) == "why"
    assert type(exception_of(code_of(error), "why")) is type(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConsumerBusyError(), pb.CONSUMER_BUSY),
        (errors.ServiceNotReadyError(), pb.SERVICE_NOT_READY),
        (errors.MessageTooLargeError(), pb.NOT_ALLOWED_ERROR),
        (errors.InvalidTopicNameError(), pb.INVALID_TOPIC_NAME),
        (errors.TopicTerminatedError(), pb.TOPIC_TERMINATED_ERROR),
        (errors.ReceiveTimeoutError(), pb.SERVICE_NOT_READY),
        (LedgerFencedError(), pb.SERVICE_NOT_READY),  # the topic has another owner
        (RuntimeError(), pb.UNKNOWN_ERROR),
    ],
)
def test_codes_that_brokers_send(error: Exception, code: int) -> None:
    assert code_of(error) == code


def test_a_temporary_error_of_another_branch_makes_the_client_look_up_again() -> None:
    class PassingError(errors.HeliographError):
        advice = errors.Advice.RETRY

    assert code_of(PassingError()) == pb.SERVICE_NOT_READY


def test_a_size_above_a_limit_is_told_by_the_text_of_an_error() -> None:
    sent = MessageTooLargeError(f"{TOO_LARGE}an entry of 9 bytes{THE_LIMIT}8 bytes")
    found = exception_of(code_of(sent), str(sent))
    assert type(found) is MessageTooLargeError
    assert (found.field, found.limit) == ("payload", "8 bytes")


def test_full_disks_are_told_by_the_text_of_an_error_of_storage() -> None:
    sent = StorageFullError(f"{STORAGE_FULL}: b1 (97% used)")
    assert code_of(sent) == pb.PERSISTENCE_ERROR
    assert type(exception_of(code_of(sent), str(sent))) is StorageFullError
    assert type(exception_of(pb.PERSISTENCE_ERROR, "two bookies died")) is PersistenceError

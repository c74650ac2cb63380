"""Behaviour that clients of Pulsar's protocol rely on and that is easily implemented wrongly, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import encode_entry
from heliograph.protocol.frame import PROTOCOL_VERSION, encode_payload_frame
from tests.cluster.support.broker_cluster import BrokerCluster, wait_for
from tests.cluster.support.raw_peer import RawPeer

RECEIVE_MS = 60_000
MINUS_ONE = (1 << 64) - 1
_T = pb.BaseCommand


@pytest.fixture
def peer(cluster: BrokerCluster) -> Iterator[RawPeer]:
    with RawPeer(cluster.service_url) as connected:
        yield connected


def test_the_handshake_takes_the_lower_version_and_names_the_features(cluster: BrokerCluster) -> None:
    for version in (6, 17, 99):
        with RawPeer(cluster.service_url, version) as peer:
            assert peer.connected.protocol_version == min(version, PROTOCOL_VERSION)
            assert peer.connected.server_version
            assert peer.connected.max_message_size > 0
            assert {field.name for field, _ in peer.connected.feature_flags.ListFields()} == {
                "supports_auth_refresh",
                "supports_topic_watchers",
                "supports_get_partitioned_metadata_without_auto_creation",
                "supports_topic_watcher_reconcile",
                "takes_admin_calls",
                "takes_messages_back",
            }
    assert PROTOCOL_VERSION >= 17


def test_a_ping_is_answered_at_once_and_request_ids_may_overlap(peer: RawPeer) -> None:
    peer.send(ping=pb.CommandPing())
    peer.answer(_T.PONG)
    topic = "persistent://public/default/overlap"
    peer.look_up(topic)
    peer.send(partitioned_metadata=pb.CommandPartitionedMetadata(topic=topic, request_id=1))
    peer.send(lookup=pb.CommandLookup(topic=topic, request_id=1))
    peer.send(subscribe=pb.CommandSubscribe(
        topic=topic, subscription="s", sub_type=pb.CommandSubscribe.SHARED, consumer_id=1, request_id=1
    ))  # fmt: skip
    kinds = {peer.next()[0].type for _ in range(3)}
    assert kinds == {_T.PARTITIONED_METADATA_RESPONSE, _T.LOOKUP_RESPONSE, _T.SUCCESS}


def test_commands_for_unknown_consumers_are_ignored_and_closing_one_succeeds(peer: RawPeer) -> None:
    peer.flow(10, consumer_id=77)
    peer.send(ack=pb.CommandAck(consumer_id=77, ack_type=pb.CommandAck.INDIVIDUAL, message_id=[
        pb.MessageIdData(ledger_id=1, entry_id=1)
    ]))  # fmt: skip
    peer.send(redeliver_unack=pb.CommandRedeliverUnack(consumer_id=77))
    peer.send(close_consumer=pb.CommandCloseConsumer(consumer_id=77, request_id=5))
    assert peer.answer(_T.SUCCESS).success.request_id == 5
    peer.send(close_producer=pb.CommandCloseProducer(producer_id=77, request_id=6))
    assert peer.answer(_T.SUCCESS).success.request_id == 6


def test_subscribing_again_with_a_live_id_succeeds(peer: RawPeer) -> None:
    assert peer.subscribe("twice").type == _T.SUCCESS
    assert peer.subscribe("twice", request_id=9).success.request_id == 9


def test_permits_count_messages_and_may_go_below_zero(cluster: BrokerCluster, peer: RawPeer) -> None:
    peer.producer("permits")
    peer.subscribe("permits")
    for sequence_id in (0, 10):
        peer.publish(1, sequence_id, *[b"x"] * 5)
        peer.answer(_T.SEND_RECEIPT)
    peer.flow(1)
    peer.answer(_T.MESSAGE)
    stats = cluster.run(cluster.admin.topic_stats("permits"))["subscriptions"]["s"]["consumers"][0]
    assert stats["availablePermits"] == -4
    peer.flow(4)
    peer.send(ping=pb.CommandPing())
    peer.answer(_T.PONG)  # nothing before it
    peer.flow(1)
    peer.answer(_T.MESSAGE)


def test_acknowledgements_with_a_request_id_are_answered(peer: RawPeer) -> None:
    peer.producer("answers")
    peer.subscribe("answers")
    peer.publish(1, 0, b"x")
    peer.answer(_T.SEND_RECEIPT)
    peer.flow(10)
    message = peer.answer(_T.MESSAGE).message.message_id
    harmless: list[dict[str, Any]] = [
        {"ack_type": pb.CommandAck.INDIVIDUAL, "message_id": [message]},
        {"ack_type": pb.CommandAck.INDIVIDUAL, "message_id": [message]},  # again, without effect
        {"ack_type": pb.CommandAck.INDIVIDUAL, "message_id": [pb.MessageIdData(ledger_id=10**9, entry_id=5)]},
        {"ack_type": pb.CommandAck.INDIVIDUAL, "message_id": []},
    ]
    for request_id, fields in enumerate(harmless):
        peer.send(ack=pb.CommandAck(consumer_id=1, request_id=request_id, **fields))
        answer = peer.answer(_T.ACK_RESPONSE).ack_response
        assert (answer.request_id, answer.consumer_id, answer.HasField("error")) == (request_id, 1, False)
    refused: list[tuple[dict[str, Any], int]] = [
        ({"txnid_most_bits": 1, "txnid_least_bits": 2}, pb.NOT_ALLOWED_ERROR),
        ({"ack_type": pb.CommandAck.CUMULATIVE}, pb.NOT_ALLOWED_ERROR),  # not on a shared subscription
    ]
    for fields, error in refused:
        ack = pb.CommandAck(consumer_id=1, request_id=50, ack_type=pb.CommandAck.INDIVIDUAL, message_id=[message])
        ack.MergeFrom(pb.CommandAck(**fields))
        peer.send(ack=ack)
        assert peer.answer(_T.ACK_RESPONSE).ack_response.error == error


def test_cumulative_acknowledgements_at_the_edges(cluster: BrokerCluster, peer: RawPeer) -> None:
    exclusive = pb.CommandSubscribe.EXCLUSIVE
    peer.producer("edges")
    peer.subscribe("edges", sub_type=exclusive)
    peer.publish(1, 0, b"x")
    place = peer.answer(_T.SEND_RECEIPT).send_receipt.message_id

    def backlog_after(ledger_id: int, entry_id: int) -> int:
        data = pb.MessageIdData(ledger_id=ledger_id, entry_id=entry_id)
        peer.send(ack=pb.CommandAck(consumer_id=1, request_id=3, ack_type=pb.CommandAck.CUMULATIVE, message_id=[data]))
        peer.answer(_T.ACK_RESPONSE)
        found = cluster.run(cluster.admin.topic_stats("edges"))["subscriptions"]["s"]["msgBacklog"]
        return int(found)

    assert backlog_after(place.ledger_id, MINUS_ONE) == 1, "the place before the first entry"
    assert backlog_after(place.ledger_id + 1_000, 5) == 1, "an entry that does not exist yet"
    assert backlog_after(place.ledger_id, 10**6) == 1, "the same in this ledger"
    assert backlog_after(place.ledger_id, place.entry_id) == 0


def test_a_seek_closes_the_consumer_before_it_is_answered(peer: RawPeer) -> None:
    peer.subscribe("seek")
    peer.send(seek=pb.CommandSeek(consumer_id=1, request_id=8, message_publish_time=0))
    closed = peer.answer(_T.CLOSE_CONSUMER).close_consumer
    assert (closed.consumer_id, closed.request_id) == (1, MINUS_ONE)
    assert peer.answer(_T.SUCCESS).success.request_id == 8
    peer.send(seek=pb.CommandSeek(consumer_id=1, request_id=9, message_publish_time=0))
    assert peer.answer(_T.ERROR).error.request_id == 9, "it has to subscribe again"


def test_only_the_last_consumer_unsubscribes_unless_it_forces_it(peer: RawPeer) -> None:
    for consumer_id in (1, 2):
        peer.subscribe("unsub", consumer_id)
    peer.send(unsubscribe=pb.CommandUnsubscribe(consumer_id=1, request_id=3))
    refused = peer.answer(_T.ERROR).error
    assert (refused.request_id, refused.error) == (3, pb.METADATA_ERROR)
    peer.send(unsubscribe=pb.CommandUnsubscribe(consumer_id=1, request_id=4, force=True))
    assert peer.answer(_T.CLOSE_CONSUMER).close_consumer.consumer_id == 2
    assert peer.answer(_T.SUCCESS).success.request_id == 4


def test_the_last_id_of_empty_topics_and_of_batches(peer: RawPeer) -> None:
    peer.subscribe("last")
    peer.send(get_last_message_id=pb.CommandGetLastMessageId(consumer_id=1, request_id=1))
    empty = peer.answer(_T.GET_LAST_MESSAGE_ID_RESPONSE).get_last_message_id_response
    assert (empty.last_message_id.ledger_id, empty.last_message_id.entry_id) == (MINUS_ONE, MINUS_ONE)
    assert empty.HasField("consumer_mark_delete_position")
    peer.producer("last")
    peer.publish(1, 0, b"a", b"b", b"c")
    place = peer.answer(_T.SEND_RECEIPT).send_receipt.message_id
    peer.send(get_last_message_id=pb.CommandGetLastMessageId(consumer_id=1, request_id=2))
    found = peer.answer(_T.GET_LAST_MESSAGE_ID_RESPONSE).get_last_message_id_response
    assert (found.last_message_id.entry_id, found.last_message_id.batch_index) == (place.entry_id, 2)


def test_markers_are_passed_over_and_acknowledged(cluster: BrokerCluster, peer: RawPeer) -> None:
    peer.producer("markers")
    peer.subscribe("markers")
    peer.flow(10)
    metadata = pb.MessageMetadata(producer_name="raw", sequence_id=0, publish_time=1, marker_type=10)
    send = pb.CommandSend(producer_id=1, sequence_id=0, marker=True)
    peer.socket.sendall(encode_payload_frame(_T(type=_T.SEND, send=send), encode_entry(metadata, b"marker")))
    peer.answer(_T.SEND_RECEIPT)
    peer.publish(1, 1, b"x")
    kinds = [peer.next() for _ in range(2)]
    pushed = [section for command, section in kinds if command.type == _T.MESSAGE]
    assert len(pushed) == 1
    assert b"marker" not in (pushed[0] or b"")
    wait_for(
        lambda: cluster.run(cluster.admin.topic_stats("markers"))["subscriptions"]["s"]["msgBacklog"] == 1,
        "the marker to be acknowledged",
    )


def test_messages_carry_the_epoch_that_their_consumer_is_in(peer: RawPeer) -> None:
    peer.producer("epochs")
    peer.subscribe("epochs", sub_type=pb.CommandSubscribe.EXCLUSIVE, consumer_epoch=4)
    peer.publish(1, 0, b"x")
    peer.answer(_T.SEND_RECEIPT)
    peer.flow(10)
    assert peer.answer(_T.MESSAGE).message.consumer_epoch == 4
    again = pb.CommandRedeliverUnack
    peer.send(redeliver_unack=again(consumer_id=1, consumer_epoch=5))
    assert peer.answer(_T.MESSAGE).message.consumer_epoch == 5
    peer.send(redeliver_unack=again(consumer_id=1, consumer_epoch=3))  # an older epoch arrives late
    peer.send(ping=pb.CommandPing())
    peer.answer(_T.PONG)


def test_failover_consumers_are_told_which_is_active_if_they_know_the_command(cluster: BrokerCluster) -> None:
    failover = pb.CommandSubscribe.FAILOVER
    with RawPeer(cluster.service_url) as first, RawPeer(cluster.service_url, 11) as old:
        first.subscribe("heard", sub_type=failover, consumer_name="a", priority_level=1)
        first.flow(1)
        assert first.answer(_T.ACTIVE_CONSUMER_CHANGE).active_consumer_change.is_active
        old.subscribe("heard", sub_type=failover, consumer_name="b")  # priority 0 is better
        assert not first.answer(_T.ACTIVE_CONSUMER_CHANGE).active_consumer_change.is_active
        old.send(ping=pb.CommandPing())
        old.answer(_T.PONG)  # and no command that it does not know


def test_all_chunks_of_a_message_go_to_one_consumer(peer: RawPeer) -> None:
    peer.producer("chunks")
    for consumer_id in (1, 2):
        peer.subscribe("chunks", consumer_id)
        peer.flow(1, consumer_id)
    for chunk in range(4):
        metadata = pb.MessageMetadata(
            producer_name="raw", sequence_id=0, publish_time=1, uuid="raw-0", chunk_id=chunk, num_chunks_from_msg=4
        )
        send = pb.CommandSend(producer_id=1, sequence_id=0, is_chunk=True)
        peer.socket.sendall(encode_payload_frame(_T(type=_T.SEND, send=send), encode_entry(metadata, b"c")))
    found = [peer.next()[0] for _ in range(8)]
    assert len({one.message.consumer_id for one in found if one.type == _T.MESSAGE}) == 1
    assert sum(one.type == _T.SEND_RECEIPT for one in found) == 4


def test_consumer_stats(peer: RawPeer) -> None:
    peer.producer("counted")
    peer.subscribe("counted", consumer_name="me")
    peer.publish(1, 0, b"x", b"y")
    peer.answer(_T.SEND_RECEIPT)
    peer.flow(10)
    peer.answer(_T.MESSAGE)
    peer.send(consumer_stats=pb.CommandConsumerStats(request_id=1, consumer_id=1))
    stats = peer.answer(_T.CONSUMER_STATS_RESPONSE).consumer_stats_response
    assert (stats.consumer_name, stats.available_permits, stats.unacked_messages) == ("me", 8, 2)
    assert (stats.type, stats.msg_backlog, stats.blocked_consumer_on_unacked_msgs) == ("Shared", 1, False)
    peer.send(consumer_stats=pb.CommandConsumerStats(request_id=2, consumer_id=9))
    assert peer.answer(_T.CONSUMER_STATS_RESPONSE).consumer_stats_response.error_code == pb.CONSUMER_NOT_FOUND


def test_sticky_ranges_that_overlap_are_an_assign_error(peer: RawPeer) -> None:
    def meta(*ranges: tuple[int, int]) -> pb.KeySharedMeta:
        return pb.KeySharedMeta(mode=pb.STICKY, hash_ranges=[pb.IntRange(start=a, end=b) for a, b in ranges])

    options: dict[str, Any] = {"sub_type": pb.CommandSubscribe.KEY_SHARED}
    assert peer.subscribe("ranges", 1, key_shared_meta=meta((0, 100)), **options).type == _T.SUCCESS
    for wrong in (meta((100, 200)), meta(), meta((5, 4)), meta((200, 70_000))):
        refused = peer.subscribe("ranges", 2, key_shared_meta=wrong, **options)
        assert refused.error.error == pb.CONSUMER_ASSIGN_ERROR


def test_subscriptions_are_created_only_where_policies_allow(cluster: BrokerCluster, peer: RawPeer) -> None:
    arguments = {"topic": "closed", "values": {"auto_create_subscriptions": False, "max_subscriptions": 1}}
    cluster.run(cluster.admin.create_topic("closed"))
    cluster.run(cluster.admin.run("namespaces.set_topic_policies", arguments))
    assert peer.subscribe("closed").error.error == pb.SUBSCRIPTION_NOT_FOUND
    cluster.run(cluster.admin.create_subscription("closed", "s"))
    assert peer.subscribe("closed").type == _T.SUCCESS
    other = peer.subscribe("closed", 2, subscription="other", durable=False)
    assert other.error.error == pb.NOT_ALLOWED_ERROR


def test_a_reader_may_start_some_time_ago(cluster: BrokerCluster, peer: RawPeer) -> None:
    with cluster.client() as client:
        client.create_producer("ago").send(b"x")
    start = pb.MessageIdData(ledger_id=MINUS_ONE, entry_id=MINUS_ONE)
    options: dict[str, Any] = {"durable": False, "sub_type": pb.CommandSubscribe.EXCLUSIVE, "start_message_id": start}
    peer.subscribe("ago", 1, subscription="r1", start_message_rollback_duration_sec=3_600, **options)
    peer.flow(5)
    assert peer.answer(_T.MESSAGE).message.consumer_id == 1


def test_subscription_properties_are_kept(cluster: BrokerCluster, peer: RawPeer) -> None:
    peer.subscribe("attached", subscription_properties=[pb.KeyValue(key="team", value="blue")])
    cluster.run(cluster.admin.unload_topic("attached"))
    assert cluster.run(cluster.admin.cursors.properties("attached", "s")) == {"team": "blue"}


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        ({"sub_type": pb.CommandSubscribe.EXCLUSIVE}, {}),
        (
            {
                "sub_type": pb.CommandSubscribe.KEY_SHARED,
                "key_shared_meta": pb.KeySharedMeta(mode=pb.STICKY, hash_ranges=[pb.IntRange(start=0, end=65_535)]),
            },
            {
                "consumer_type": pulsar.ConsumerType.KeyShared,
                "key_shared_policy": pulsar.ConsumerKeySharedPolicy(
                    key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 65_535)]
                ),
            },
        ),
    ],
    ids=["exclusive", "sticky"],
)
def test_the_stock_client_gets_the_place_of_a_dead_consumer(
    cluster: BrokerCluster, taken: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """A dead connection is detected by a PING when another client asks for its place."""
    with RawPeer(cluster.service_url) as silent, cluster.client() as client:
        assert silent.subscribe(f"place-{len(wanted)}", **taken).type == _T.SUCCESS
        consumer = client.subscribe(f"place-{len(wanted)}", "s", **wanted)
        assert silent.answer(_T.PING)
        with pytest.raises(ConnectionError):
            silent.next()
        consumer.close()

"""``client.admin`` against a broker that answers as the test wants."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest

from heliograph.actors.broker.schema.check_budget import SchemaTooComplexError
from heliograph.actors.broker.schema.registry import SchemaNotFoundError
from heliograph.actors.broker.topic.opening import BeingDeletedError
from heliograph.base.errors import (
    AuthenticationError,
    BadRequestError,
    ConnectionLostError,
    DataLostError,
    HeliographError,
    IncompatibleSchemaError,
    NotFoundError,
    NotPermittedError,
    RequestTimeoutError,
    ServiceNotReadyError,
    TopicExistsError,
    TopicNotFoundError,
    UnsupportedError,
)
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
from heliograph.operations.answer import packed_failure, packed_value, unpacked
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.client.fake_broker import FakeBroker, FakeConnection, T
from tests.unit.client.world import client_of


class AdminBroker(FakeBroker):
    """A broker that gives one answer after another: bytes, or None, which ends the connection without one."""

    def __init__(self, *answers: bytes | None) -> None:
        super().__init__()
        self.takes_admin_calls = True
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def take(self, connection: FakeConnection, request: pb.CommandAdminCall) -> None:
        self.asked.append((request.operation, msgpack.unpackb(request.arguments)))
        answer = self.answers.pop(0)
        if answer is None:
            connection.abort()
        else:
            connection.answer(admin_answer=pb.CommandAdminAnswer(request_id=request.request_id, answer=answer))


EXISTS = packed_failure(TopicExistsError("it exists", field="topic"))
BUSY = packed_failure(ServiceNotReadyError("not now"))


async def test_an_operation_is_asked_with_all_its_arguments() -> None:
    async with AdminBroker(packed_value(4), packed_value(["a", "b"])) as broker, await client_of(broker) as client:
        assert await client.admin.partitions("t") == 4
        assert await client.admin.namespaces.list("tenant") == ["a", "b"]
        assert broker.asked[0] == ("partitions", {"topic": "t"}), "an older broker may not know what has its default"
        assert broker.asked[1][0] == "namespaces.list"


async def test_an_error_keeps_its_class_and_field() -> None:
    gone = packed_failure(NotFoundError("gone", field="topic"))
    async with AdminBroker(gone) as broker, await client_of(broker) as client:
        with pytest.raises(NotFoundError, match="gone") as caught:
            await client.admin.delete_topic("t")
        assert caught.value.field == "topic"


async def test_a_lost_answer_is_asked_for_again_and_work_that_is_found_done_succeeds() -> None:
    async with AdminBroker(None, EXISTS) as broker, await client_of(broker) as client:
        await client.admin.create_topic("t")
        assert len(broker.asked) == 2
    async with AdminBroker(EXISTS) as broker, await client_of(broker) as client:
        with pytest.raises(TopicExistsError):
            await client.admin.create_topic("t")


async def test_a_broker_that_is_not_ready_is_asked_again() -> None:
    async with AdminBroker(BUSY, BUSY, packed_value(0)) as broker, await client_of(broker) as client:
        assert await client.admin.partitions("t") == 0


async def test_what_may_not_be_repeated_is_asked_once() -> None:
    async with AdminBroker(None) as broker, await client_of(broker) as client:
        with pytest.raises(ConnectionLostError):
            await client.admin.publish("t", [b"x"])
        assert len(broker.asked) == 1


async def test_a_broker_that_is_away_ends_the_call_in_time() -> None:
    async with AdminBroker() as broker:
        client = await client_of(broker, operation_timeout_ms=300)
    with pytest.raises((ConnectionLostError, RequestTimeoutError)):
        await client.admin.partitions("t")
    await client.close()


async def test_a_broker_that_does_not_answer_is_not_asked_again_after_the_timeout() -> None:
    class Silent(AdminBroker):
        def take(self, connection: FakeConnection, request: pb.CommandAdminCall) -> None:
            self.asked.append((request.operation, {}))

    async with Silent() as broker, await client_of(broker, operation_timeout_ms=300) as client:
        with pytest.raises(RequestTimeoutError):
            await client.admin.partitions("t")
        assert len(broker.asked) == 1


async def test_a_broker_of_an_older_release_is_not_asked() -> None:
    async with AdminBroker() as broker:
        broker.takes_admin_calls = False
        async with await client_of(broker) as client:
            with pytest.raises(UnsupportedError, match="older release"):
                await client.admin.partitions("t")
            assert not broker.of_type(T.ADMIN_CALL)


async def test_calls_of_one_moment_share_the_connection() -> None:
    async with AdminBroker(*[packed_value(each) for each in range(20)]) as broker, await client_of(broker) as client:
        admin = client.admin
        assert await asyncio.gather(*(admin.partitions("t") for _ in range(20))) == [*range(20)]
        assert len(broker.connections) == 1


async def test_an_error_whose_text_is_made_of_arguments_is_told_as_its_base() -> None:
    lost = packed_failure(DataLostError("t", -1, (1, 2), None))
    async with AdminBroker(lost) as broker, await client_of(broker) as client:
        with pytest.raises(NotFoundError):
            await client.admin.topic_stats("t")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SchemaNotFoundError("no such schema"), NotFoundError),
        (SchemaTooComplexError("too deep"), IncompatibleSchemaError),
        (BeingDeletedError("t is being deleted"), TopicNotFoundError),
        (TopicNotFoundError("no topic"), TopicNotFoundError),
    ],
)
def test_an_error_of_a_part_is_told_as_the_nearest_class_that_callers_know(
    error: HeliographError, told: type[HeliographError]
) -> None:
    with pytest.raises(HeliographError) as raised:
        unpacked(packed_failure(error), "the broker")
    assert type(raised.value) is told


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequestError),
        (401, AuthenticationError),
        (403, NotPermittedError),
        (404, GatewayAwayError),
        (413, BadRequestError),
        (429, ServiceNotReadyError),
        (500, ConnectionLostError),
        (502, ConnectionLostError),
        (503, ServiceNotReadyError),
    ],
)
def test_a_status_without_an_answer_is_an_error_with_a_sentence(status: int, kind: type[HeliographError]) -> None:
    with pytest.raises(HeliographError, match="gateway") as raised:
        GatewayCalls("http://h:1", "n")._understood(status, "text/html", b"<html>")
    assert type(raised.value) is kind

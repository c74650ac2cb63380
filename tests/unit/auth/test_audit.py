"""The audit log: what is noted, the bounds of its files, and what becomes of lines for which there is no room."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from heliograph.auth import audit
from heliograph.auth.audit import READS, AuditLog
from heliograph.auth.config import AuditConfig, AuthConfig
from heliograph.auth.principal import Credentials, Principal
from heliograph.base.errors import AuthenticationError, HeliographError, NotPermittedError, TopicExistsError
from heliograph.operations.table import OPERATIONS
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns

ROOT, NOBODY = Principal("root", method="token"), Principal("nobody", "gate", method="token")
CREATE, STATS = OPERATIONS["create_topic"], OPERATIONS["topic_stats"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(path: Path, work: Callable[[AuditLog], Awaitable[None]], **options: Any) -> AuditLog:
    """Do some work with a log that writes to a file, and return it when everything is written."""

    async def scenario() -> AuditLog:
        log = AuditLog(AuditConfig(file=str(path), **options), "broker-1")
        log.start()
        await work(log)
        await log.stop()
        return log

    return asyncio.run(scenario())


def test_a_change_is_one_line(tmp_path: Path) -> None:
    async def work(log: AuditLog) -> None:
        arguments = {"topic": "persistent://a/b/t", "partitions": 3, "persistence": None}
        log.operation(ROOT, CREATE, arguments, None, peer="10.0.0.7", seconds=0.0123)
        log.operation(NOBODY, CREATE, arguments, TopicExistsError("it exists"))
        log.operation(NOBODY, STATS, {"topic": "t"}, None)
        skip = {"topic": "t", "subscription": "s", "count": 2}
        log.operation(ROOT, OPERATIONS["cursors.skip"], skip, None)

    written(tmp_path / "logs" / "audit.json", work)
    made, failed, skipped = lines_of(tmp_path / "logs" / "audit.json")
    assert made.pop("time").endswith("Z")
    assert made == {
        "broker": "broker-1", "role": "root", "method": "token", "peer": "10.0.0.7", "operation": "create_topic",
        "target": "persistent://a/b/t", "arguments": {"partitions": "3"}, "outcome": "done", "ms": 12,
    }  # fmt: skip
    assert (failed["via"], failed["outcome"], failed["error"]) == ("gate", "failed", "TopicExistsError")
    assert (skipped["target"], skipped["arguments"]) == ("t s", {"topic": "t", "count": "2"})
    assert stat.S_IMODE((tmp_path / "logs" / "audit.json").stat().st_mode) == 0o600


def test_what_callers_send_cannot_break_or_fill_a_line(tmp_path: Path) -> None:
    async def work(log: AuditLog) -> None:
        nasty = {"topic": 'x"\n{}\x00' * 500, **{f"a{number}": "y" * 5_000 for number in range(100)}}
        log.operation(ROOT, CREATE, nasty, HeliographError("z" * 9_000))

    written(tmp_path / "audit.json", work)
    (line,) = lines_of(tmp_path / "audit.json")
    assert len(line["target"]) == audit.TEXT_CHARACTERS_MAX
    assert (tmp_path / "audit.json").stat().st_size < 10_000


def test_refusals_are_noted_up_to_a_rate(tmp_path: Path) -> None:
    async def work(log: AuditLog) -> None:
        for _ in range(100):
            log.operation(NOBODY, STATS, {"topic": "t"}, NotPermittedError("no"))
        log.operation(ROOT, CREATE, {"topic": "t"}, None)

    log = written(tmp_path / "audit.json", work, refusals_per_second=5.0)
    [done] = lines_of(tmp_path / "audit.json")
    lines = [*lines_of(tmp_path / "audit-refused.json"), done]
    refused = [line["outcome"] for line in lines[:-1]]
    assert (set(refused), done["outcome"]) == ({"refused"}, "done")
    assert 5 <= len(refused) <= 20  # as time goes on, more are allowed
    assert sum(line.get("dropped", 0) for line in lines) == log.dropped_total == 100 - len(refused)


def test_a_flood_of_refusals_hides_no_success(tmp_path: Path) -> None:
    """Refusals neither rotate the file of successes away nor fill the queues for the disk and the topic."""
    waiting: list[int] = []

    async def work(log: AuditLog) -> None:
        log.operation(ROOT, CREATE, {"topic": "first"}, None)
        for number in range(3_000):
            log.login_refused(f"10.0.0.{number % 250}", "token", "the token's signature is wrong " * 5)
            if number % 100 == 0:
                await asyncio.sleep(0.002)
        waiting.append(len(log._waiting))
        log.operation(ROOT, CREATE, {"topic": "last"}, None)

    options: dict[str, Any] = {"refusals_per_second": 1e6, "lines_max": 1_000, "file_bytes_max": 64 << 10}
    written(tmp_path / "audit.json", work, **options, files_max=2, topic="public/audit/log")
    assert [line["target"] for line in lines_of(tmp_path / "audit.json")] == ["first", "last"]
    refused = lines_of(tmp_path / "audit-refused.json")
    assert {(line["operation"], line["method"], line["error"]) for line in refused} == {
        ("login", "token", "AuthenticationError")
    }
    assert waiting == [500], "half of the queue for the topic is left for what was done"


def test_files_are_rotated_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "audit-{broker_id}.json"

    async def work(log: AuditLog) -> None:
        for number in range(6_000):
            log.operation(ROOT, CREATE, {"topic": f"t{number}"}, None)
            if number % 100 == 0:
                await asyncio.sleep(0.002)

    log = written(path, work, file_bytes_max=64 * 1024, files_max=3, lines_max=10_000)
    assert log.dropped_total == 0
    kept = sorted(tmp_path.iterdir())
    assert [each.name for each in kept] == [f"audit-broker-1.json{end}" for end in ("", ".1", ".2")]
    for each in kept:
        assert each.stat().st_size <= 64 * 1024 + audit.BATCH_LINES_MAX * 300
    assert lines_of(tmp_path / "audit-broker-1.json")[-1]["target"] == "t5999"


def test_a_disk_that_takes_nothing_is_no_reason_to_wait(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def work(log: AuditLog) -> None:
        log.operation(ROOT, CREATE, {"topic": "t"}, None)

    log = written(tmp_path / "file" / "audit.json", work)
    assert log.dropped_total <= 1  # noted by the loop, if it still turns


async def test_a_topic_is_published_to_again_until_it_takes_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "BATCH_SECONDS", 0.0)
    monkeypatch.setattr(audit, "RETRY_SECONDS", 0.0)
    published: list[dict[str, Any]] = []
    failures = [HeliographError("not now")]

    async def publish(topic: str, lines: list[bytes]) -> None:
        assert topic == "public/audit/log"
        if failures:
            raise failures.pop()
        published.extend(json.loads(line) for line in lines)

    log = AuditLog(AuditConfig(topic="public/audit/log", lines_max=3), "b")
    log.publish = publish
    log.start()
    for number in range(5):
        log.operation(ROOT, CREATE, {"topic": f"t{number}"}, None)
    await turns(lambda: len(published) == 3)
    await log.stop()
    found = log
    assert found.dropped_total == 2
    assert [line["target"] for line in published] == ["t0", "t1", "t2"]


def test_reads_are_operations() -> None:
    assert set(OPERATIONS) >= READS
    changes = set(OPERATIONS) - READS
    assert {"create_topic", "permissions.grant", "brokers.drain", "namespaces.set_policies"} <= changes
    assert "cursors.skip" in changes
    assert {"cursors.peek", "cursors.examine", "cursors.message", "read_access", "read_plan"} <= changes, (
        "they show data"
    )


async def test_a_caller_that_is_not_let_in_is_noted(tmp_path: Path) -> None:
    auth = AuthConfig(enabled=True, token_secret_key="data:;base64," + base64.b64encode(b"k" * 32).decode())
    async with LoneBroker(auth=auth, audit=AuditConfig(file=str(tmp_path / "audit.json"))) as lone:
        with pytest.raises(AuthenticationError):
            await lone.broker.authenticator.authenticate(Credentials("token", b"x.y.z"), "10.0.0.7:5")
        with pytest.raises(AuthenticationError):
            await lone.broker.authenticator.authenticate(Credentials("unknown" * 99), "10.0.0.7:6")
    bad, unknown = lines_of(tmp_path / "audit-refused.json")
    assert (bad["operation"], bad["method"], bad["peer"]) == ("login", "token", "10.0.0.7:5")
    assert "malformed" in bad["reason"]
    assert len(unknown["method"]) == audit.TEXT_CHARACTERS_MAX


async def test_a_broker_notes_operations_and_refused_commands(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    auth = AuthConfig(enabled=True, superuser_roles=("root",), anonymous_role="nobody")
    async with LoneBroker(auth=auth, audit=AuditConfig(file=str(path))) as lone:
        await lone.broker.admin.run(
            "create_topic", {"topic": "non-persistent://public/default/made"}, ROOT, "10.0.0.7:1"
        )
        with pytest.raises(NotPermittedError):
            await lone.broker.admin.run("delete_topic", {"topic": "made"}, NOBODY)
        client = Client(lone.broker)
        await turns(lambda: client.answer(T.CONNECTED))
        client.say(T(type=T.PRODUCER, producer=pb.CommandProducer(topic="made", producer_id=1, request_id=1)))
        await turns(lambda: client.answer(T.ERROR))
        client.leave()
    [made] = lines_of(path)
    deletion, produce = lines_of(tmp_path / "audit-refused.json")
    assert (made["outcome"], made["role"], made["peer"]) == ("done", "root", "10.0.0.7:1")
    assert (deletion["outcome"], deletion["operation"]) == ("refused", "delete_topic")
    assert (produce["operation"], produce["role"], produce["outcome"]) == ("Produce", "nobody", "refused")
    assert produce["target"].endswith("/made")
    assert produce["peer"]


@pytest.mark.parametrize(("way", "partitions"), [("producer", 0), ("consumer", 0), ("metadata", 2), ("metadata", 0)])
async def test_a_topic_that_a_client_creates_by_using_it_is_noted_once(
    tmp_path: Path, way: str, partitions: int
) -> None:
    path = tmp_path / "audit.json"
    auth = AuthConfig(enabled=True, superuser_roles=("root",), anonymous_role="root")
    name = "non-persistent://public/default/used"
    producer = pb.CommandProducer(topic=name, producer_id=1, request_id=1)
    consumer = pb.CommandSubscribe(
        topic=name, subscription="s", sub_type=pb.CommandSubscribe.SHARED, consumer_id=1, request_id=1
    )
    metadata = pb.CommandPartitionedMetadata(topic=name, request_id=1)
    command, answer = {
        "producer": (T(type=T.PRODUCER, producer=producer), T.PRODUCER_SUCCESS),
        "consumer": (T(type=T.SUBSCRIBE, subscribe=consumer), T.SUCCESS),
        "metadata": (T(type=T.PARTITIONED_METADATA, partitioned_metadata=metadata), T.PARTITIONED_METADATA_RESPONSE),
    }[way]

    async def use(lone: LoneBroker) -> None:
        client = Client(lone.broker)
        await turns(lambda: client.answer(T.CONNECTED))
        client.say(command)
        await asyncio.gather(*client.connection._tasks)
        assert client.answer(answer), client.transport.answers
        client.leave()

    async with LoneBroker(auth=auth, audit=AuditConfig(file=str(path))) as lone:
        if partitions:
            await lone.broker.admin.namespaces.set_policies("public/default", {"auto_create_partitions": partitions})
        await lone.broker.ownership.resolve(TopicName.parse(name))
        await use(lone)
        await use(lone)
    expected = {"producer": [0], "consumer": [0], "metadata": [partitions] if partitions else []}[way]
    found = lines_of(path) if path.exists() else []
    lines = [line for line in found if line["operation"] != "subscribe"]
    assert [line["role"] for line in found if line not in lines] == ["root"] * (2 if way == "consumer" else 0)
    assert [line["arguments"] for line in lines] == [{"partitions": str(n), "automatic": "True"} for n in expected]
    for line in lines:
        noted = line["operation"], line["target"], line["role"], line["outcome"]
        assert noted == ("create_topic", name, "root", "done")
        assert line["peer"]

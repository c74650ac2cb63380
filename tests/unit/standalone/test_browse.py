"""Messages over HTTP: searched within bounds, followed, sent again; and what a role does not get to see."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import heliograph
from heliograph.auth.issuing import new_token
from heliograph.operations.cursors import MASKED

pytestmark = pytest.mark.slow

Line = dict[str, Any]
TOPICS = "topics/persistent/public/default"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def client(cluster: heliograph.LocalCluster) -> Iterator[heliograph.Client]:
    with cluster.connect() as client:
        yield client


def asked(cluster: heliograph.LocalCluster, path: str, body: Any = None, token: str = "") -> urllib.request.Request:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(f"{cluster.http_url}/{path}", data, headers)


def opened(cluster: heliograph.LocalCluster, request: urllib.request.Request) -> Any:
    """Send a request; a secured cluster has an authority of its own."""
    authority = cluster.directory / "certificates" / "ca.pem"
    context = ssl.create_default_context(cafile=str(authority)) if authority.exists() else None
    return urllib.request.urlopen(request, timeout=60, context=context)


def browse(cluster: heliograph.LocalCluster, topic: str, **query: Any) -> list[Line]:
    with urllib.request.urlopen(
        asked(cluster, f"{TOPICS}/{quote(topic)}/browse?{urlencode(query)}"), timeout=60
    ) as lines:
        return [json.loads(line) for line in lines]


def post(cluster: heliograph.LocalCluster, path: str, body: Any) -> Any:
    with opened(cluster, asked(cluster, path, body)) as answer:
        return json.load(answer)


def refused(cluster: heliograph.LocalCluster, path: str, body: Any = None, token: str = "") -> tuple[int, Line]:
    with pytest.raises(urllib.error.HTTPError) as error:
        opened(cluster, asked(cluster, path, body, token))
    return error.value.code, json.load(error.value)


def payloads(lines: list[Line]) -> list[str]:
    return [line["payload"] for line in lines if line["type"] == "message"]


@pytest.fixture(scope="module")
def orders(client: heliograph.Client) -> str:
    """A topic of 40 messages in JSON."""
    with client.producer("orders", batch_messages=5) as producer:
        for number in range(40):
            body = {"total": number, "lines": [{"sku": f"s{number % 7}"}], "paid": number % 2 == 0}
            producer.send(
                json.dumps(body), key=f"k{number % 4}", properties={"n": str(number), "even": str(number % 2)}
            )
    return "orders"


def test_a_search_begins_where_it_is_told_and_goes_on_where_it_stopped(
    cluster: heliograph.LocalCluster, orders: str
) -> None:
    *found, end = browse(cluster, orders, limit=15)
    assert [json.loads(text)["total"] for text in payloads(found)] == list(range(15))
    assert (end["type"], end["why"], end["found"]) == ("end", "found", 15)
    *rest, last = browse(cluster, orders, **{"from": end["next"]})
    assert [json.loads(text)["total"] for text in payloads(rest)] == list(range(15, 40))
    assert (last["why"], last["looked"], last["leftOut"]) == ("end", 25, 0)
    assert payloads(browse(cluster, orders, **{"from": last["next"]})) == []
    assert payloads(browse(cluster, orders, **{"from": "latest"})) == []
    twentieth = next(line for line in found if line["properties"]["n"] == "9")
    (after, *_) = browse(cluster, orders, **{"from": twentieth["messageId"], "limit": 1})
    assert after["properties"]["n"] == "10"
    assert payloads(browse(cluster, orders, time=0)) == payloads([*found, *rest])
    assert payloads(browse(cluster, orders, time=int(time.time() * 1000) + 3_600_000)) == []
    assert len(payloads(browse(cluster, orders, last=2))) >= 2


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"key": "k1"}, range(1, 40, 4)),
        ({"property": "n=7"}, [7]),
        ({"property": "missing"}, []),
        ({"property": "even=1", "key": "k3"}, range(3, 40, 4)),
        ({"text": '"TOTAL": 12'}, [12]),
        ({"path": "lines[0].sku", "value": "s3"}, range(3, 40, 7)),
        ({"path": "$.lines[*].sku", "value": "s3"}, range(3, 40, 7)),
        ({"path": "paid", "value": "true", "text": '"total": 3'}, [30, 32, 34, 36, 38]),
        ({"path": "lines[4]"}, []),
        ({"path": "total", "value": "5"}, [5]),
    ],
)
def test_conditions(cluster: heliograph.LocalCluster, orders: str, query: dict[str, str], expected: Any) -> None:
    lines = browse(cluster, orders, **query)
    assert [json.loads(text)["total"] for text in payloads(lines)] == list(expected)
    assert lines[-1]["looked"] == 40


@pytest.mark.parametrize(("bound", "value", "why"), [("looked", 10, "looked"), ("bytes", 1, "bytes")])
def test_bounds(cluster: heliograph.LocalCluster, orders: str, bound: str, value: int, why: str) -> None:
    *_, end = browse(cluster, orders, **{bound: value, "text": "nowhere"})
    assert (end["why"], end["found"]) == (why, 0)
    assert end["looked"] <= 10


def test_what_is_refused_names_field_and_limit(cluster: heliograph.LocalCluster, orders: str) -> None:
    url = f"{TOPICS}/{orders}/browse"
    for query, field in {
        "limit=1001": "limit", "limit=0": "limit", "bytes=999999999999": "bytes", "seconds=61": "seconds",
        "path=a..b": "path", "path=a%5B": "path", "from=x": "from", "from=1:2:3": "from", "last=1001": "last",
        f"path={'a.' * 20}b": "path", "rate=201&follow=true": "rate",
    }.items():  # fmt: skip
        status, body = refused(cluster, f"{url}?{query}")
        assert (status in (400, 422), body["field"]) == (True, field), (query, body)
    assert refused(cluster, f"{TOPICS}/no-such-topic/browse")[0] == 404
    assert refused(cluster, url.replace("persistent", "non-persistent") + "?limit=1")[0] == 405


def test_payloads_are_decoded_by_their_schema_and_raw_on_request(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "city", "type": "string"}]}
    schema = heliograph.AvroSchema(json.dumps(definition))
    with client.producer("cities", schema=schema) as producer:
        producer.send({"city": "Brno"})
    with client.producer("bytes") as producer:
        producer.send(b"\xff\x00")
        producer.send("x" * 70_000)
    found, *_ = browse(cluster, "cities", path="city", value="Brno", raw="true")
    assert json.loads(found["payload"]) == {"city": "Brno"}
    assert found["payloadBase64"] == "CEJybm8="
    no_text, large, _ = browse(cluster, "bytes")
    assert (no_text["payload"], no_text["size"], no_text["isNull"]) == (None, 2, False)
    assert (len(large["payload"]), large["isCut"], large["size"]) == (64 << 10, True, 70_000)
    assert "payloadBase64" not in large


def test_a_live_tail_says_how_many_it_left_out(cluster: heliograph.LocalCluster, client: heliograph.Client) -> None:
    client.admin.create_topic("live", 2)
    lines: list[Line] = []
    url = asked(cluster, f"{TOPICS}/live/browse?follow=true&rate=5&seconds=3")
    answer = opened(cluster, url)
    reading = threading.Thread(target=lambda: lines.extend(json.loads(line) for line in answer))
    reading.start()
    with client.producer("live") as producer:
        producer.send_many([str(number) for number in range(500)])
    reading.join()
    end = lines[-1]
    assert (end["type"], end["why"]) == ("end", "seconds")
    assert end["found"] == len(payloads(lines)) > 0
    assert end["found"] + end["leftOut"] == end["looked"] > 0
    assert end["leftOut"] > 0
    assert any(line["type"] == "progress" and line["leftOut"] for line in lines)


def test_messages_are_sent_again_to_another_topic(
    cluster: heliograph.LocalCluster, client: heliograph.Client, orders: str
) -> None:
    client.admin.create_topic("copies")
    wanted = browse(cluster, orders, property="n=8")[0]
    answer = post(cluster, f"{TOPICS}/{orders}/resend", {"ids": [wanted["messageId"]], "to": "copies"})
    assert answer == {"sent": 1, "failures": 0, "failed": [], "done": True, "next": "", "left": []}
    copy = browse(cluster, "copies")[0]
    assert (copy["payload"], copy["key"], copy["properties"]) == (
        wanted["payload"],
        wanted["key"],
        wanted["properties"],
    )
    assert refused(cluster, f"{TOPICS}/{orders}/resend", {"ids": ["999999:0"], "to": "copies"})[0] in (404, 504)
    status, body = refused(cluster, f"{TOPICS}/{orders}/resend", {"ids": ["1:0"] * 101, "to": "copies"})
    assert (status in (400, 413, 422), body["field"]) == (True, "ids")


def test_dead_letters_go_back_once_and_a_letter_cannot_choose_another_topic(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    client.admin.create_topic("shop")
    client.admin.create_topic("secret")
    origin = "persistent://public/default/shop"
    with client.producer("shop-billing-DLQ") as producer:
        for number in range(5):
            properties = {"REAL_TOPIC": origin, "RECONSUMETIMES": "3", "n": str(number)}
            producer.send(f"letter {number}", properties=properties)
        producer.send("forged", properties={"REAL_TOPIC": "persistent://public/default/secret"})
    url = f"{TOPICS}/shop-billing-DLQ/retry"
    third = browse(cluster, "shop-billing-DLQ", property="n=2")[0]
    first = post(cluster, url, {"limit": 2})
    assert (first["sent"], first["done"]) == (2, False)
    assert post(cluster, url, {"ids": [third["messageId"]]})["sent"] == 1
    answer = post(cluster, url, {"after": first["next"]})
    assert (answer["sent"], answer["done"]) == (2, True)
    assert [failure["field"] for failure in answer["failed"]] == ["to"]
    assert sorted(payloads(browse(cluster, "shop"))) == [f"letter {number}" for number in range(5)]
    assert all("RECONSUMETIMES" not in line.get("properties", {}) for line in browse(cluster, "shop"))
    assert payloads(browse(cluster, "secret")) == []
    assert post(cluster, url, {"to": "secret"})["sent"] == 1, "the caller named it"


def test_topics_of_all_namespaces_are_searched_in_pages(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    client.admin.namespaces.create_tenant("acme", ["standalone"])
    client.admin.namespaces.create("acme/shop")
    for number in range(5):
        client.admin.create_topic(f"persistent://acme/shop/needle-{number}")
    client.admin.create_topic("needle-in-public", 3)
    url = f"{cluster.http_url}/admin/heliograph/topics"

    def page(**query: Any) -> Line:
        with urllib.request.urlopen(f"{url}?{urlencode(query)}") as answer:
            found: Line = json.load(answer)
        return found

    names, after = list[str](), ""
    while True:
        found = page(text="NEEDLE", limit=2, after=after)
        names += [row["name"] for row in found["topics"]]
        if not (after := found["next"]):
            break
    expected = [f"persistent://acme/shop/needle-{number}" for number in range(5)]
    assert names == [*expected, "persistent://public/default/needle-in-public"]
    (row,) = page(text="in-public")["topics"]
    assert (row["partitions"], row["backlog"], row["msgRateIn"]) == (3, 0, 0)
    assert page(namespace="acme/shop")["topics"][0]["name"] == expected[0]
    assert refused(cluster, "admin/heliograph/topics?namespace=acme/none")[0] == 404
    assert refused(cluster, "admin/heliograph/topics?limit=201")[1]["field"] == "limit"


def test_a_role_without_the_right_to_consume_sees_no_payload(tmp_path: Path) -> None:
    with heliograph.local(tmp_path / "home", secure=True) as cluster:
        secret = (cluster.directory / "token-secret.key").read_bytes()
        with cluster.connect() as client:
            for topic in ("orders", "theirs-x-DLQ", "theirs"):
                client.admin.create_topic(topic)
            client.admin.permissions.grant("public/default", "writer", ["produce"])
            client.admin.permissions.grant_topic("theirs-x-DLQ", "reader", ["consume"])
            with client.producer("orders") as producer:
                producer.send("a secret")
            with client.producer("theirs-x-DLQ") as producer:
                producer.send("y", properties={"REAL_TOPIC": "persistent://public/default/theirs"})
        writer, reader = (new_token(role, secret, "HS256") for role in ("writer", "reader"))
        for query in ("", "?last=1", "?time=0", "?follow=true&seconds=1", "?raw=true&from=0:0"):
            status, body = refused(cluster, f"{TOPICS}/orders/browse{query}", token=writer)
            assert (status, "a secret" in json.dumps(body)) == (403, False), query
        again = {"ids": ["0:0"], "to": "orders"}
        assert refused(cluster, f"{TOPICS}/orders/resend", again, writer)[0] in (403, 404)
        assert refused(cluster, f"{TOPICS}/orders/retry", {}, writer)[0] == 403
        assert refused(cluster, f"{TOPICS}/orders/browse", token=reader)[0] == 403
        assert refused(cluster, f"{TOPICS}/orders/browse")[0] == 401
        assert refused(cluster, "admin/heliograph/history", token=writer)[0] == 403
        assert refused(cluster, "admin/v2/persistent/public/default/orders/history", token=reader)[0] == 403
        # Reading is not writing: what the letters' reader sends back is refused at the other topic.
        retry = asked(cluster, f"{TOPICS}/theirs-x-DLQ/retry", {}, reader)
        with opened(cluster, retry) as answer:
            told = json.load(answer)
        assert (told["sent"], len(told["failed"])) == (0, 1)


def test_a_policy_hides_contents_from_all_but_superusers_and_consumers(tmp_path: Path) -> None:
    secret_value = "4711 0815"
    with heliograph.local(tmp_path / "home", secure=True) as cluster, cluster.connect() as client:
        secret = (cluster.directory / "token-secret.key").read_bytes()
        reader, owner = (new_token(role, secret, "HS256") for role in ("reader", "admin"))
        client.admin.create_topic("cards")
        client.admin.create_subscription("cards", "audit", "earliest")
        client.admin.permissions.grant("public/default", "reader", ["consume"])
        client.admin.namespaces.set_policies("public/default", {"payloads_masked": True})
        with client.producer("cards") as producer:
            producer.send_many([secret_value] * 2, keys=["k", "k"], properties=[{"card": secret_value}] * 2)
            producer.send(secret_value, properties={"card": secret_value, "traceparent": PARENT})

        def told(path: str, token: str, body: Any = None) -> tuple[str, Any]:
            with opened(cluster, asked(cluster, path, body, token)) as answer:
                return answer.read().decode(), answer.headers

        admin = "admin/v2/persistent/public/default/cards"
        peek = "admin/heliograph/operations/cursors.peek"
        peeked = {"arguments": {"topic": "cards", "subscription": "audit", "count": 3}}
        (found, *_, end) = map(json.loads, told(f"{TOPICS}/cards/browse?raw=true&key=k", reader)[0].splitlines())
        assert (found["payload"], found["properties"], found["isMasked"]) == (MASKED, {"card": MASKED}, True)
        assert (found["key"], found["size"], end["found"]) == ("k", len(secret_value), 2)
        assert json.loads(told(f"{TOPICS}/cards/browse?property=card", reader)[0].splitlines()[-1])["found"] == 3
        shown = [
            told(f"{TOPICS}/cards/browse", reader)[0],
            told(f"{TOPICS}/cards/browse?raw=true&follow=true&seconds=1&last=3", reader)[0],
            told(peek, reader, peeked)[0],
            *(
                str(told(f"{admin}/{path}", reader))
                for path in ("subscription/audit/position/1", "subscription/audit/position/2", "examinemessage")
            ),
        ]
        for text in shown:
            assert MASKED in text or base64.b64encode(MASKED.encode()).decode() in text, text
            assert secret_value not in text
            assert base64.b64encode(secret_value.encode()).decode() not in text
        for query in ("text=4711", "path=a", f"property=card={quote(secret_value)}"):
            status, body = refused(cluster, f"{TOPICS}/cards/browse?{query}", token=reader)
            assert (status, body["field"], MASKED in body["reason"]) == (412, "payloads_masked", True)
        find = {"topic": "cards", "property_name": "card", "value": secret_value}
        status, body = refused(cluster, peek.replace("peek", "find"), {"arguments": find}, reader)
        assert (status, body["field"]) == (412, "payloads_masked")
        traced = {"arguments": find | {"property_name": "traceparent", "value": PARENT.split("-")[1]}}
        assert len(json.loads(told(peek.replace("peek", "find"), reader, traced)[0])["value"]["message_ids"]) == 1

        assert secret_value in told(f"{TOPICS}/cards/browse?text=4711", owner)[0]
        assert told(f"{admin}/examinemessage", owner)[0] == secret_value
        with client.consumer("cards", "audit") as consumer:
            assert {message.data.decode() for message in consumer.receive_many(3, timeout=30)} == {secret_value}
        client.admin.namespaces.set_topic_policies("cards", {"payloads_masked": False})
        assert secret_value in told(f"{TOPICS}/cards/browse", reader)[0]


@pytest.mark.parametrize("path", ["browse?follow=true&seconds=600", "events"])
def test_an_answer_that_lasts_ends_with_its_server(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with heliograph.local() as cluster:
        with cluster.connect() as client:
            client.admin.create_topic("orders")
        answer = opened(cluster, asked(cluster, f"{TOPICS}/orders/{path}"))
        assert answer.readline()
    answer.read()  # to its end: a connection that is cut raises
    assert [record.getMessage() for record in caplog.records if record.name == "uvicorn.error"] == []

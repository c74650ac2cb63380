"""A message in a dictionary, in a log and in a notebook."""

from __future__ import annotations

import pickle
from dataclasses import replace

from heliograph.client.aio.consumer.message import Message
from heliograph.protocol.message_id import MessageId

TOPIC = "persistent://public/default/t"
MESSAGE: Message[bytes] = Message(b"x", MessageId(3, 4, batch_index=1, batch_size=9), key="k", topic=TOPIC)


def test_a_message_is_a_key_that_it_finds_delivered_again() -> None:
    pending = {MESSAGE: "task"}
    again = replace(MESSAGE, redelivery_count=2)
    assert pending[again] == pending[pickle.loads(pickle.dumps(MESSAGE))] == pending[MESSAGE.with_value(b"7")] == "task"
    for other in (replace(MESSAGE, message_id=MessageId(3, 4, batch_index=2)), replace(MESSAGE, topic=TOPIC + "2")):
        assert other != MESSAGE
        assert other not in pending
    assert MESSAGE.message_id != MESSAGE


def test_a_large_message_is_short_in_a_log() -> None:
    assert repr(MESSAGE) == f"Message({TOPIC}, 3:4:-1:1:9, key='k', data=b'x')"
    large = replace(MESSAGE, data=b"a" * (4 << 20), key="k" * 5_000)
    assert repr(large).endswith(f"data=b'{'a' * 64}'... (4194304 bytes))")
    assert len(repr(large)) < 300
    assert len(repr(replace(large, data=bytes(4 << 20)))) < 600


def test_a_notebook_shows_a_table_without_running_what_is_in_the_message() -> None:
    shown = replace(
        MESSAGE,
        data=b"<script>" + b"a" * 5_000,
        key="<b>",
        properties={"<i>": "<u>" * 5_000},
        event_time_ms=0,
        redelivery_count=1,
        producer_name="<p>" * 5_000,
    )._repr_html_()
    assert shown.startswith("<table><tr><th>topic</th>")
    assert "(5008 bytes)" in shown
    assert "1970-01-01 00:00:00+00:00" in shown
    assert len(shown) < 1_500
    for name in ("script", "b", "i", "u", "p"):
        assert f"<{name}>" not in shown

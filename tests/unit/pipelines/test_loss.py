"""Start positions whose entries were deleted: what is lost is said, what had been read is not missed."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from typing import Any, cast

import pytest

from heliograph.actors.broker.records.topic_record import TRIMMED_KEPT_MAX, trimmed_ledgers, with_trimmed
from heliograph.base.errors import BadRequestError, DataLostError, UnsupportedError
from heliograph.client.admin.admin import Admin
from heliograph.metadata.model import LedgerInfo, TopicRecord
from heliograph.pipelines.planning import plan as planning
from heliograph.pipelines.planning.loss import Holdings, check_losses, check_on_data_loss, find_loss
from heliograph.protocol.topic_name import TopicName
from tests.unit.pipelines.test_ledger_pages import page_of

TOPIC = "persistent://public/default/t"
HELD = Holdings(TOPIC, -1, ledgers=(9, 12), trimmed=((3, 100), (5, 40), (7, 10)))


@pytest.mark.parametrize(
    ("wanted", "entries", "is_exact"),
    [
        ((3, 20), 130, True),
        ((3, 100), 50, True),  # all of ledger 3 had been read
        ((7, 0), 10, True),
        ((7, 9), 1, True),
        ((2, 4), 150, False),  # trimmed so long ago that the record does not name it
        ((4, 0), 50, False),  # closed without entries
        ((8, 3), 0, False),  # none of this topic: it was deleted and created again
        ((20, 3), 0, False),
    ],
)
def test_what_is_lost_is_counted(wanted: tuple[int, int], entries: int, is_exact: bool) -> None:
    loss = find_loss(HELD, wanted)
    assert loss is not None
    assert (loss.topic, loss.partition, loss.wanted, loss.oldest) == (TOPIC, -1, wanted, (9, 0))
    assert (loss.entries, loss.is_exact) == (entries, is_exact)


@pytest.mark.parametrize("wanted", [(9, 0), (9, 500), (12, 3), (7, 10), (7, 11), (8, 0), (13, 0)])
def test_what_is_there_or_was_read_is_not_missed(wanted: tuple[int, int]) -> None:
    assert find_loss(HELD, wanted) is None


def test_a_topic_that_was_made_again_is_noticed_also_while_it_is_empty() -> None:
    loss = find_loss(Holdings(TOPIC, 0, ()), (5, 1))
    assert loss is not None
    assert loss.oldest is None
    assert "created again" in str(loss)


def test_a_loss_survives_a_pickle() -> None:
    loss = find_loss(HELD, (3, 20))
    found = pickle.loads(pickle.dumps(loss))
    assert (str(found), found.wanted, found.entries, found.field) == (str(loss), (3, 20), 130, "on_data_loss")


def test_skipping_says_how_much(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLostError, match="130 entries"):
        check_losses([HELD], {-1: (3, 20)})
    (loss,) = check_losses([HELD], {-1: (3, 20)}, "skip")
    assert loss.entries == 130
    assert "130 entries" in caplog.text
    assert check_losses([HELD], None) == []
    with pytest.raises(BadRequestError, match="nonsense"):
        check_on_data_loss("nonsense")


def test_a_trimmed_ledger_is_noted_in_the_record_with_its_entries() -> None:
    count = TRIMMED_KEPT_MAX + 10
    record = TopicRecord(
        "t", tuple(LedgerInfo(one, one % 3, 10, 1) for one in range(1, count)), properties={"user.a": "b"}
    )
    assert trimmed_ledgers(record) == []
    assert trimmed_ledgers(with_trimmed(record, record.ledgers[:3])) == [(1, 1), (2, 2)]  # 3 had none
    twice = with_trimmed(with_trimmed(record, record.ledgers[:2]), record.ledgers[2 : count - 2])
    assert trimmed_ledgers(twice) == [(one, one % 3) for one in range(1, count - 1) if one % 3][-TRIMMED_KEPT_MAX:]
    assert twice.properties["user.a"] == "b"


class Brokers:
    """A topic with two partitions, as its brokers tell of it."""

    def __init__(self, held: Mapping[str, Holdings]) -> None:
        self._held = held
        self.asked: list[str] = []

    async def partitions(self, topic: str) -> int:
        return len(self._held)

    async def read_plan(self, topic: str, first: object, last: object) -> list[dict[str, Any]]:
        raise BadRequestError("there is no operation read_plan", field="operation")  # of an earlier release

    async def topic_ledgers(self, topic: str, after: int) -> dict[str, Any]:
        return page_of(self._held[topic].ledgers, after)

    async def read_access(self, topic: str, ledger_ids: list[int]) -> dict[str, Any]:
        assert ledger_ids == [], "only the record is asked for"
        self.asked.append(topic)
        return {"trimmed": [list(pair) for pair in self._held[topic].trimmed]}


def test_a_plan_looks_only_where_the_start_is_in_doubt() -> None:
    first, second = f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"
    brokers = Brokers({first: Holdings(first, 0, (4,)), second: Holdings(second, 1, (9,), ((5, 30),))})

    def plan(start: dict[int, tuple[int, int]]) -> object:
        return asyncio.run(planning._plan(TopicName.parse(TOPIC), start, {0: (0, 0), 1: (0, 0)}, cast(Admin, brokers)))

    assert plan({0: (4, 7), 1: (9, 2)}) == []
    assert brokers.asked == []
    with pytest.raises(DataLostError) as raised:
        plan({0: (4, 7), 1: (5, 10)})
    assert (raised.value.partition, raised.value.entries) == (1, 20)
    assert brokers.asked == [second]
    with pytest.raises(DataLostError):  # the topic had three partitions when the position was noted
        plan({2: (7, 3)})


def test_a_topic_that_stores_nothing_is_refused_in_words() -> None:
    with pytest.raises(UnsupportedError, match="is not persistent"):
        planning.plan_topic("non-persistent://public/default/t")

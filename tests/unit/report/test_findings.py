"""The sentences of the console: what died, what is repaired and until when, who is behind, which command helps."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.report.findings import Lag, findings, verdict
from tests.unit.cli.test_examples import ALL

WELL = ClusterReport(
    "operator",
    1_000,
    parts=(PartReport("bookie-1", "bookie", "ALIVE"), PartReport("broker-1", "broker", "ALIVE")),
    bookies_available=("bookie-1",),
    underreplicated_ledgers=0,
    ledgers_in_repair=0,
    ledgers_damaged=0,
)
DEAD = PartReport("bookie-2", "bookie", "MISSING", since_ms=500, note="is not registered in metadata")
BROKEN = replace(WELL, parts=(*WELL.parts, DEAD), underreplicated_ledgers=7, ledgers_in_repair=2)


def test_a_cluster_that_is_well_has_no_findings() -> None:
    found = findings(WELL, None)
    assert found == []
    assert verdict(WELL, found) == "all is well"


def test_a_dead_bookie_is_named_with_its_repair_and_its_end() -> None:
    down, repair = found = findings(BROKEN, {"seconds_left": 200.0})
    assert (down.what, down.since_ms) == ("bookie-2 is down: is not registered in metadata", 500)
    assert down.command == "helio logs bookie-2"
    assert "go on with the other copies" in down.meaning
    assert repair.what == "7 ledgers have fewer copies than wanted"
    assert repair.meanwhile == "repair goes on with 2 of them now, and is done in about 3 min"
    assert repair.command == "helio ledgers repair-status"
    assert verdict(BROKEN, found) == "degraded, publishing goes on, nothing is lost"


def test_a_part_that_does_not_start_is_down_though_its_last_address_is_known() -> None:
    stuck = replace(DEAD, address="10.0.0.2:3181", note="on 10.0.0.2: does not start: CookieMismatchError: x")
    found = findings(replace(WELL, parts=(*WELL.parts, stuck)), None)[0]
    assert found.what.startswith("bookie-2 is down: on 10.0.0.2: does not start")
    assert "go on with the other copies" in found.meaning


def test_it_says_until_when_a_bookie_is_waited_for_and_how_many_topics_are_served() -> None:
    told: dict[str, Any] = {"seconds_left": None, "lost_bookie_delay_ms": 60_500}
    waited = findings(BROKEN, told)[0]
    assert waited.meanwhile == "copies that it had are made again on other bookies if it is not back in 60 s"
    begun = findings(replace(BROKEN, as_of_ms=100_000), told)[0]
    assert begun.meanwhile == "copies that it had are made again on other bookies"
    told |= {"ledgers_left": 0, "absent_bookies": ["bookie-2"], "lost_bookies": []}
    late = replace(BROKEN, as_of_ms=100_000)
    assert findings(late, told)[0].meanwhile == begun.meanwhile, "no audit has given its ledgers to repair yet"
    done = "the copies that it had are made again: other bookies have all of them"
    assert findings(late, told | {"lost_bookies": ["bookie-2"]})[0].meanwhile == done
    assert findings(late, told | {"absent_bookies": []})[0].meanwhile == done, "no ledger names it"
    assert findings(late, told | {"absent_bookies": None})[0].meanwhile == begun.meanwhile, "no audit yet"
    assert findings(late, told | {"absent_bookies": [], "ledgers_left": 1})[0].meanwhile == begun.meanwhile
    paused = findings(replace(BROKEN, is_repair_paused=True), told)[0]
    assert paused.meanwhile == "copies that it had are not made again while repair is paused"
    assert verdict(BROKEN, [waited], topics=(120, 214)) == (
        "degraded, publishing goes on for 120 of 214 topics, nothing is lost"
    )


def test_what_no_bookie_can_take_says_so_and_names_the_command_that_adds_one() -> None:
    (_, repair) = findings(BROKEN, {"seconds_left": 0.0, "ledgers_without_place": 7})
    assert repair.meanwhile == "7 of them wait for a bookie that can take the copies"
    assert repair.command == "helio scale bookies 3"


def test_a_pause_names_the_command_that_ends_it() -> None:
    (_, repair) = findings(replace(BROKEN, is_repair_paused=True), None)
    assert (repair.meanwhile, repair.command) == ("repair is paused", "helio ledgers resume")


def test_what_limits_publishing_stands_first_and_a_loss_is_not_denied() -> None:
    note = "publishing is stopped on 3 topics: 1 bookie takes entries"
    report = replace(BROKEN, publishing_notes=(note,), ledgers_damaged=1)
    found = findings(report, None)
    assert (found[0].what, found[0].command) == (note, "helio scale bookies 3")
    assert verdict(report, found) == "publishing is limited"
    assert "1 ledger has entries without a good copy" in [finding.what for finding in found]


def test_subscriptions_that_are_behind_say_where_it_leads() -> None:
    topic = "persistent://public/default/orders"
    slow = Lag(topic, "audit", 90_000, 9_000, acknowledged_rate=10, in_rate=50, out_rate=10, consumers=1)
    left = Lag(topic, "old", 500, 500, acknowledged_rate=0, in_rate=50, out_rate=0, consumers=0)
    quick = Lag(topic, "catching", 95_000, 9_500, acknowledged_rate=100, in_rate=50, out_rate=100, consumers=2)
    fine = Lag(topic, "fine", 100, 100, acknowledged_rate=50, in_rate=50, out_rate=50, consumers=1)
    found = findings(WELL, None, [fine, left, slow, quick])
    assert [finding.what for finding in found] == [
        "catching of orders is 95,000 messages behind",
        "audit of orders is 90,000 messages behind",
        "old of orders is 500 messages behind",
    ]
    assert [finding.meanwhile for finding in found] == [
        "it catches up in about 3 min",
        "it falls further behind: 50.0 messages come a second, 10.0 are delivered",
        "no consumer is connected",
    ]
    assert all(finding.is_warning and finding.command == "helio topics stats orders" for finding in found)
    assert verdict(WELL, found) == "well, and a subscription is behind"


@pytest.mark.parametrize("name", ["a'; rm -rf ~; '", "$(reboot)", "-x", "--json", "a b", "a\u2028b"])
def test_a_command_to_copy_hands_the_name_of_a_stranger_over_as_one_argument(name: str) -> None:
    lag = Lag(f"persistent://public/default/{name}", "s", 9e9, 9e9, 0, 1, 0, 0)
    (behind,) = findings(WELL, None, [lag])
    words = ["helio", "topics", "stats", *(["--"] if name.startswith("-") else []), name]
    assert behind.command == shlex.join(words)


def test_publishing_is_stopped_when_no_broker_serves() -> None:
    dead = replace(DEAD, name="broker-1", kind="broker")
    report = replace(WELL, parts=(WELL.parts[0], dead))
    found = findings(report, None)
    assert verdict(report, found, "no answer in time") == "publishing is stopped: no broker serves, nothing is lost"
    assert "other brokers" not in found[0].meaning
    sick = replace(report, parts=(replace(dead, address="pulsar://b"),))
    assert verdict(sick, findings(sick, None)) == "unknown: no broker is well"


def test_what_is_not_known_is_not_said_to_be_well() -> None:
    assert verdict(WELL, [], "topics cannot be read") == "unknown: topics cannot be read"
    unread = replace(BROKEN, ledgers_damaged=-1)
    assert verdict(unread, findings(unread, None)) == "degraded, publishing goes on"


def test_unknown_is_a_state() -> None:
    assert verdict(None, [], "the metadata store is silent since 03:02:11") == (
        "unknown: the metadata store is silent since 03:02:11"
    )
    silent = replace(WELL, is_silent=True)
    found = findings(silent, None)
    assert found[0].command == "helio up"


def test_the_commands_exist() -> None:
    report = replace(
        BROKEN, publishing_notes=("x",), ledgers_damaged=1, is_silent=True, full_disks={"bookie-1": "its disk is full"}
    )
    lag = Lag("persistent://a/b/c", "s", 9e9, 9e9, 0, 1, 0, 0)
    for finding in findings(report, None, [lag]):
        words = finding.command.split()
        assert words[0] == "helio"
        assert words[1] in ALL or f"{words[1]} {words[2]}" in ALL, finding.command

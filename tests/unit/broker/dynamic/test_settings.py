"""Which settings can change while a broker runs, and which values they take."""

from __future__ import annotations

import pytest

from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.dynamic.settings import (
    LIVE_SETTINGS,
    PULSAR_NAMES,
    checked,
    pulsar_form,
    value_in,
    with_values,
)
from heliograph.base.errors import InvalidConfigError

CONFIG = BrokerConfig("b")


def test_the_named_settings_are_those_that_are_declared_live() -> None:
    assert {"connections_max", "default_retention_seconds", "balance.shed_gap", "split.topics"} <= set(LIVE_SETTINGS)
    assert not {"port", "host", "max_message_bytes", "ledger.writer.window"} & set(LIVE_SETTINGS)
    assert {known.setting for known in PULSAR_NAMES.values()} <= set(LIVE_SETTINGS)


@pytest.mark.parametrize("name", LIVE_SETTINGS)
def test_every_setting_reads_back_the_value_that_holds(name: str) -> None:
    text = value_in(CONFIG, name)
    assert checked(name, text, CONFIG) == (name, text)
    assert with_values(CONFIG, {name: text}) == CONFIG


@pytest.mark.parametrize("name", PULSAR_NAMES)
def test_every_name_of_pulsar_gives_back_its_value(name: str) -> None:
    declared = LIVE_SETTINGS[PULSAR_NAMES[name].setting]
    for value in {bool: ("true", "false"), str: declared.setting.choices}.get(declared.kind, ("20",)):
        full, text = checked(name, value, CONFIG)
        assert full == PULSAR_NAMES[name].setting
        assert pulsar_form(full, text) in {(name, value), (name, f"{value}.0")}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("connections_max", "7", ("connections_max", "7")),
        ("brokerMaxConnections", "7", ("connections_max", "7")),
        ("managedLedgerCacheSizeMB", "2", ("cache_bytes", str(2 << 20))),
        ("defaultRetentionTimeInMinutes", "90", ("default_retention_seconds", "5400")),
        ("defaultRetentionTimeInMinutes", "-1", ("default_retention_seconds", "-1")),
        ("activeConsumerFailoverDelayTimeMillis", "250", ("failover_delay_seconds", "0.25")),
        ("key_shared_splits_ranges", "True", ("key_shared_splits_ranges", "true")),
        ("allowAutoTopicCreation", "false", ("defaults.auto_create_topics", "false")),
        ("allowAutoTopicCreationType", "partitioned", ("defaults.auto_create_type", "partitioned")),
        ("ttlDurationDefaultInSeconds", "60", ("defaults.message_ttl_seconds", "60")),
        ("dispatchThrottlingRatePerTopicInMsg", "-1", ("defaults.dispatch_messages_per_second", "0")),
        ("backlogQuotaDefaultLimitBytes", "-1", ("defaults.backlog_quota_bytes", "-1")),
        ("defaultRetentionSizeInMB", "2", ("defaults.retention_bytes", str(2 << 20))),
        ("balance.shed_gap", " 0.5 ", ("balance.shed_gap", "0.5")),
    ],
)
def test_values_are_kept_in_our_unit(name: str, value: str, expected: tuple[str, str]) -> None:
    assert checked(name, value, CONFIG) == expected


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("connection_max", "7", "the nearest name is connections_max"),
        ("functionsWorkerEnabled", "true", "nor a name of Pulsar"),
        ("backlogQuotaDefaultLimitBytes", "0", "at least 1"),
        ("allowAutoTopicCreation", "yes, please", "valid boolean"),
        ("allowAutoTopicCreationType", "many", "partitioned"),
        ("schemaCompatibilityStrategy", "SOME", "FORWARD"),
        ("brokerMaxConections", "7", "the nearest name is brokerMaxConnections"),
        ("max_message_bytes", "7", "read when a broker starts"),
        ("ledger.writer.window_entries", "7", "no setting named"),
        ("connections_max", "-1", "at least 0"),
        ("connections_max", "many", "valid integer"),
        ("connections_max", "1.5", "valid integer"),
        ("brokerMaxConnections", "0", "at least 1"),
        ("brokerMaxConnections", "x", "a number is expected"),
        ("housekeeping_seconds", "0", "above 0"),
        ("keep_alive_seconds", "nan", "a number is expected"),
        ("keep_alive_seconds", "inf", "a number is expected"),
        ("keepAliveIntervalSeconds", "inf", "a number is expected"),
        ("balance.rounds", "0", "balance.rounds = 0"),
        ("publish_messages_per_second", "-1", "at least 0"),
    ],
)
def test_what_is_not_acceptable_is_refused_in_words(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        checked(name, value, CONFIG)

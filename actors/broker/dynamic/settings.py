"""Which settings of a broker can change while it runs, and values for them as text (pure).

A setting is named as in the configuration, ``balance.shed_gap`` for one of a part, or by the name that Pulsar has for
it, whose unit may be another.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from heliograph.actors.broker.config import MIB, BrokerConfig
from heliograph.base.errors import BadRequestError, InvalidConfigError
from heliograph.base.section import Declared, Section, unknown_setting, value_of

UNLIMITED = "-1"
LIKENESS_LEAST = 0.8  # of a name that is suggested instead of an unknown one; a far one would mislead


@dataclass(frozen=True, slots=True)
class PulsarSetting:
    """A name of Pulsar for one of these settings.

    Args:
        factor: how many of our units one of Pulsar's is, if the value is a number.
        least: the lowest value that means the same here.
        unlimited: our value for -1, which has no unit.
    """

    setting: str
    factor: float = 1
    least: float = 0
    unlimited: str = UNLIMITED


def _rate(setting: str) -> PulsarSetting:
    return PulsarSetting(f"defaults.{setting}_per_second", unlimited="0")


def _policy(setting: str, factor: float = 1, least: float = 0) -> PulsarSetting:
    return PulsarSetting(f"defaults.{setting}", factor, least)


_OF_POLICIES = {  # the defaults of policies in broker.conf
    "allowAutoSubscriptionCreation": _policy("auto_create_subscriptions"),
    "allowAutoTopicCreation": _policy("auto_create_topics"),
    "allowAutoTopicCreationType": _policy("auto_create_type"),
    "backlogQuotaDefaultLimitBytes": _policy("backlog_quota_bytes", least=1),  # 0 is no limit there
    "backlogQuotaDefaultLimitSecond": _policy("backlog_quota_seconds", least=1),  # 0 is no limit there
    "backlogQuotaDefaultRetentionPolicy": _policy("backlog_quota_action"),
    "brokerDeduplicationEnabled": _policy("deduplication"),
    "brokerDeduplicationEntriesInterval": _policy("deduplication_snapshot_entries"),
    "brokerDeduplicationProducerInactivityTimeoutMinutes": _policy("deduplication_seconds", 60),
    "brokerDeduplicationSnapshotIntervalSeconds": _policy("deduplication_snapshot_seconds"),
    "brokerDeleteInactiveTopicsEnabled": _policy("inactive_delete"),
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": _policy("inactive_delete_seconds"),
    "brokerDeleteInactiveTopicsMode": _policy("inactive_delete_mode"),
    "brokerServiceCompactionThresholdInBytes": _policy("compaction_threshold_bytes"),
    "defaultNumPartitions": _policy("auto_create_partitions"),
    "defaultRetentionSizeInMB": _policy("retention_bytes", MIB),
    "defaultRetentionTimeInMinutes": PulsarSetting("default_retention_seconds", 60),
    "delayedDeliveryEnabled": _policy("delayed_delivery"),
    "delayedDeliveryMaxDelayInMillis": _policy("delayed_ms_max"),
    "delayedDeliveryTickTimeMillis": _policy("delayed_tick_ms"),
    "dispatchThrottlingRatePerSubscriptionInByte": _rate("subscription_dispatch_bytes"),
    "dispatchThrottlingRatePerSubscriptionInMsg": _rate("subscription_dispatch_messages"),
    "dispatchThrottlingRateRelativeToPublishRate": _policy("dispatch_relative"),
    "dispatchThrottlingRatePerTopicInByte": _rate("dispatch_bytes"),
    "dispatchThrottlingRatePerTopicInMsg": _rate("dispatch_messages"),
    "isSchemaValidationEnforced": _policy("schema_validation_enforced"),
    "maxConsumersPerSubscription": _policy("max_consumers_per_subscription"),
    "maxConsumersPerTopic": _policy("max_consumers"),
    "maxProducersPerTopic": _policy("max_producers"),
    "maxPublishRatePerTopicInBytes": _rate("publish_bytes"),
    "maxPublishRatePerTopicInMessages": _rate("publish_messages"),
    "maxSubscriptionsPerTopic": _policy("max_subscriptions"),
    "maxTopicsPerNamespace": _policy("max_topics"),
    "maxUnackedMessagesPerConsumer": _policy("max_unacked_per_consumer"),
    "maxUnackedMessagesPerSubscription": _policy("max_unacked_per_subscription"),
    "schemaCompatibilityStrategy": _policy("schema_compatibility"),
    "subscribeRatePeriodPerConsumerInSecond": _policy("subscribe_period_seconds"),
    "subscribeThrottlingRatePerConsumer": _rate("subscribes"),
    "subscriptionExpirationTimeMinutes": _policy("subscription_expiration_seconds", 60),
    "ttlDurationDefaultInSeconds": _policy("message_ttl_seconds"),
}
PULSAR_NAMES = {
    **_OF_POLICIES,
    "activeConsumerFailoverDelayTimeMillis": PulsarSetting("failover_delay_seconds", 1 / 1000),
    "brokerMaxConnections": PulsarSetting("connections_max", least=1),  # 0 is no limit there
    "brokerMaxConnectionsPerIp": PulsarSetting("connections_per_address_max", least=1),  # 0 is no limit there
    "brokerPublisherThrottlingMaxByteRate": PulsarSetting("publish_bytes_per_second"),
    "brokerPublisherThrottlingMaxMessageRate": PulsarSetting("publish_messages_per_second"),
    "brokerShutdownTimeoutMs": PulsarSetting("shutdown_seconds_max", 1 / 1000),
    "keepAliveIntervalSeconds": PulsarSetting("keep_alive_seconds"),
    "loadBalancerBrokerThresholdShedderPercentage": PulsarSetting("balance.shed_gap", 1 / 100),
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": PulsarSetting("split.bytes_per_second", MIB),
    "loadBalancerNamespaceBundleMaxMsgRate": PulsarSetting("split.messages_per_second"),
    "loadBalancerNamespaceBundleMaxTopics": PulsarSetting("split.topics"),
    "loadBalancerNamespaceMaximumBundles": PulsarSetting("split.bundles_max"),
    "loadBalancerSheddingGracePeriodMinutes": PulsarSetting("balance.rest_seconds", 60),
    "loadBalancerSheddingIntervalMinutes": PulsarSetting("balance_seconds", 60),
    "managedLedgerCacheSizeMB": PulsarSetting("cache_bytes", MIB, least=1),
    "maxMessagePublishBufferSizeInMB": PulsarSetting("publish_bytes_max", MIB, least=1),  # 0 is no limit there
    "maxNamespacesPerTenant": PulsarSetting("namespaces_per_tenant_max"),
}


_ALL = {declared.name: declared for declared in Section(BrokerConfig).settings()}
LIVE_SETTINGS: Mapping[str, Declared] = {name: _ALL[name] for name in sorted(_ALL) if _ALL[name].setting.is_live}
_PULSAR_BY_NAME = {known.setting: name for name, known in PULSAR_NAMES.items()}


def setting_named(name: str) -> Declared:
    """Return the setting of a name, ours or Pulsar's.

    Raises:
        InvalidConfigError: no setting that can change has it; says the nearest name, or that the setting is fixed.
    """
    known = PULSAR_NAMES.get(name)
    found = LIVE_SETTINGS.get(known.setting if known is not None else name)
    if found is not None:
        return found
    if name in _ALL:
        raise InvalidConfigError(
            f"{name} is read when a broker starts: set it in the configuration and restart the brokers", field=name
        )
    near = difflib.get_close_matches(name, (*LIVE_SETTINGS, *PULSAR_NAMES), n=1, cutoff=LIKENESS_LEAST)
    hint = (
        f"; the nearest name is {near[0]}" if near else ", nor a name of Pulsar for one: helio config live lists them"
    )
    raise InvalidConfigError(f"no setting named {name} can change while brokers run{hint}", field=name)


def checked(name: str, text: str, config: BrokerConfig) -> tuple[str, str]:
    """Return the full name of a setting and the text of a value for it in our unit.

    Args:
        name: ours or Pulsar's; the value is in the unit of that name.
        config: the values of all settings; the new one has to be in agreement with the others.

    Raises:
        InvalidConfigError: no such setting can change, or the value is not acceptable.
    """
    setting, known = setting_named(name), PULSAR_NAMES.get(name)
    if known is not None:
        text = _in_our_unit(name, known, text.strip(), setting)
    with_values(config, {setting.name: text})
    return setting.name, shown(_parsed(setting, text))


def pulsar_form(name: str, text: str) -> tuple[str, str] | None:
    """Return Pulsar's name of a setting and the value in Pulsar's unit; None where Pulsar has no name for it."""
    other = _PULSAR_BY_NAME.get(name)
    if other is None:
        return None
    value = _parsed(LIVE_SETTINGS[name], text)
    if text != UNLIMITED and isinstance(value, int | float) and not isinstance(value, bool):
        value = value / PULSAR_NAMES[other].factor
        value = round(value) if math.isclose(value, round(value)) else value
    return other, shown(value)


def with_values(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """Return a configuration with some settings replaced, by their full names.

    Raises:
        InvalidConfigError: a setting cannot change, or a value is not acceptable.
    """
    for name, text in values.items():
        setting = LIVE_SETTINGS.get(name)
        if setting is None:
            raise unknown_setting(name, LIVE_SETTINGS)
        part, _, last = name.rpartition(".")
        try:
            value = _parsed(setting, text)
            if part:
                config = replace(config, **{part: replace(getattr(config, part), **{last: value})})
            else:
                config = replace(config, **{last: value})
        except BadRequestError as error:  # of the limits of the part, which does not know its own name
            raise InvalidConfigError(f"{name} = {text}: {error}", field=name, limit=error.limit) from None
    return config


def value_in(config: BrokerConfig, name: str) -> str:
    """Return the value of a setting as text, by its full name."""
    part, _, last = name.rpartition(".")
    return shown(getattr(getattr(config, part) if part else config, last))


def shown(value: Any) -> str:
    """Return the text of a value, which reads back as the same value."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(setting: Declared, text: str) -> Any:
    value = value_of(setting.kind, text.strip(), setting.name)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidConfigError(f"{setting.name} = {text!r}: a number is expected", field=setting.name)
    return value


def _in_our_unit(name: str, known: PulsarSetting, text: str, setting: Declared) -> str:
    if text == UNLIMITED:
        return known.unlimited
    if setting.kind not in (int, float):
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidConfigError(f"{name} = {text!r}: a number is expected", field=name)
    if number < known.least:
        raise InvalidConfigError(
            f"{name} = {text}: here it has to be at least {known.least:g}",
            field=name,
            limit=f"at least {known.least:g}",
        )
    value = number * known.factor
    return str(round(value)) if setting.kind is int and math.isclose(value, round(value)) else str(value)

"""Settings of tracing, the same for brokers and gateways."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.base.settings import check_limits, setting


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Which messages are followed, and where their spans go."""

    sampled_share: float = setting(
        0.0,
        "share of the traces that clients have begun and sampled whose messages are followed; 0: none, at no cost",
        least=0,
        most=1,
    )
    endpoint: str = setting(
        "",
        "address that spans are sent to by OTLP over HTTP, such as `http://collector:4318/v1/traces`, which needs the "
        "extra `tracing`; empty: spans go nowhere, and only `helio trace` shows followed messages",
    )
    queued_spans_max: int = setting(
        2048, "spans that wait for the collector; further ones are dropped", least=1, most=1_000_000
    )
    followed_messages_max: int = setting(
        10_000,
        "entries whose steps each process remembers for `helio trace`, the newest ones, in 32 MiB at most",
        least=1,
        most=1_000_000,
    )

    def __post_init__(self) -> None:
        check_limits(self)

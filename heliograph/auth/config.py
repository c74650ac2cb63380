"""Settings of authentication and authorisation, the same for all parts of a cluster. Names follow Pulsar's."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.base.errors import InvalidConfigError
from heliograph.base.settings import check_limits, fields_added, setting


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """The destinations of an audit log of changes, reads beyond everyday rights, and refusals."""

    file: str = setting(
        "",
        "file of JSON lines, `{broker_id}` in it is the broker's; refusals go to `<name>-refused` beside it. Not set: "
        "`<home>/logs/audit-{broker_id}.json` where callers are authenticated, unless a topic is named; empty: none",
    )
    file_bytes_max: int = setting(64 << 20, "size above which the file is rotated", least=64 * 1024)
    files_max: int = setting(5, "files that are kept, the current one counted", least=1, most=1_000)
    topic: str = setting("", "topic that the lines are published to, each as a message; empty: none")
    lines_max: int = setting(
        10_000, "lines that wait for the file, and for the topic; further ones are dropped and counted", least=1
    )
    refusals_per_second: float = setting(
        20.0, "rate of refusals that are noted; further ones are counted only", above=0
    )

    def __post_init__(self) -> None:
        check_limits(self)


@fields_added("token_jwks_url", "token_issuer")
@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Settings of authentication and authorisation. Files are read again when they change."""

    enabled: bool = setting(False, "authenticate callers at every door, and check their rights")
    token_secret_key: str = setting(
        "",
        "key that signs and checks tokens: `file:///path`, a path, `data:;base64,...` or base64",
        is_secret=True,  # it may be the key itself
    )
    token_secret_key_file: str = setting(
        "", "file that is used instead of `token_secret_key` on machines where it exists; made by `helio up`"
    )
    token_public_key: str = setting(
        "", "key that checks tokens of `token_public_alg`, given in the same ways, as DER or PEM"
    )
    token_public_alg: str = setting("RS256", "algorithm of `token_public_key`")
    token_jwks_file: str = setting("", "file with a JSON Web Key Set, by whose keys tokens are checked; empty: none")
    token_jwks_url: str = setting(
        "", "https address of such a set, which is fetched again every 5 minutes and for an unknown key; empty: none"
    )
    token_auth_claim: str = setting("sub", "claim of a token that is the role; of a list, its first")
    token_audience_claim: str = setting("", "claim that has to hold `token_audience`; empty: none is asked for")
    token_audience: str = setting("", "audience that tokens have to be made for; empty: any")
    token_issuer: str = setting("", "issuer (`iss`) that tokens have to be made by; empty: any")
    token_clock_skew_seconds: int = setting(
        0, "how far clocks may differ when a token's times are checked", least=0, most=3_600
    )
    basic_file: str = setting("", "htpasswd file of users, for the method `basic`; empty: the method is refused")
    superuser_roles: tuple[str, ...] = setting((), "roles that may do everything")
    gateway_token: str = setting(
        "",
        "token of the gateway's own role, which is one of `proxy_roles`: `file:///path`, a path, "
        "`data:;base64,...` or the token; empty: the gateway signs one by the secret key whenever it needs one",
        is_secret=True,
    )
    proxy_roles: tuple[str, ...] = setting((), "roles that speak for others and name them, as gateways do")
    anonymous_role: str = setting("", "role of callers that present nothing; empty: they are refused")
    providers: tuple[str, ...] = setting(
        (), "further methods, as names of entry points in the group `heliograph.authentication`"
    )
    refresh_check_seconds: float = setting(
        60.0, "time between two checks of the credentials and rights of open connections", above=0, most=3_600
    )

    def __post_init__(self) -> None:
        check_limits(self)
        if bool(self.token_audience) != bool(self.token_audience_claim):
            raise InvalidConfigError(
                "an audience needs the claim that holds it: give token_audience and token_audience_claim together",
                field="token_audience",
            )

    @property
    def is_enabled(self) -> bool:
        return self.enabled

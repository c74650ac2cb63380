"""Keys and tokens that ``helio tokens`` and ``helio up`` make."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from typer.testing import CliRunner

from heliograph.auth.config import AuthConfig
from heliograph.auth.issuing import own_credentials, seconds_of
from heliograph.auth.keys import content_of
from heliograph.auth.tokens import TokenProvider
from heliograph.base.errors import AuthenticationError, BadRequestError, HeliographError, InvalidConfigError
from heliograph.cli.app import app
from heliograph.client.identity import Identity
from heliograph.cluster.config import ClusterConfig


def helio(*arguments: str | Path, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, ["tokens", *map(str, arguments)], input=stdin, catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HELIOGRAPH_TOKEN", "HELIOGRAPH_TOKEN_FILE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("as_base64", [False, True])
def test_a_secret_key_signs_and_checks(tmp_path: Path, as_base64: bool) -> None:
    file = tmp_path / "my.key"
    helio("create-secret-key", "-o", file, *(["-b"] if as_base64 else []))
    assert mode(file) == 0o600
    key = file.read_text() if as_base64 else file.as_uri()
    made = helio("create", "--secret-key", key, "--subject", "alice", "--expiry", "1y")
    claims = json.loads(helio("validate", made, "--secret-key", key))
    assert claims["sub"] == "alice"
    assert claims["exp"] == pytest.approx(time.time() + 365 * 86_400, abs=60)
    assert json.loads(helio("--help") and helio("show", made).partition("---")[0])["alg"] == "HS256"
    other = helio("create-secret-key")
    with pytest.raises(AuthenticationError):
        helio("validate", made, "--secret-key", other)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_pair_of_keys_signs_and_checks(tmp_path: Path, algorithm: str) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    helio("create-key-pair", "-a", algorithm, "--output-private-key", private, "--output-public-key", public)
    assert mode(private) == 0o600
    made = helio("create", "--private-key", private, "-s", "alice", "-a", algorithm)
    assert json.loads(helio("validate", "--public-key", public, "-a", algorithm, stdin=made))["sub"] == "alice"
    file = tmp_path / "token"
    file.write_text(made + "\n")
    assert json.loads(helio("show", "-f", file, "--json"))["claims"]["sub"] == "alice"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("create", "-s", "alice"), BadRequestError),  # there is no key
        (("create", "-s", " ", "--secret-key", "a" * 44), HeliographError),
        (("create", "-s", "a", "--secret-key", "short"), InvalidConfigError),
        (("create", "-s", "a", "--secret-key", "a" * 44, "-a", "none"), BadRequestError),
        (("create", "-s", "a", "--secret-key", "a" * 44, "-a", "RS256"), BadRequestError),
        (("create", "-s", "a", "--secret-key", "a" * 44, "-e", "soon"), BadRequestError),
        (("create-secret-key", "-a", "RS256"), BadRequestError),
        (("show", "nonsense"), AuthenticationError),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: tuple[str, ...], error: type[HeliographError]) -> None:
    with pytest.raises(error):
        helio(*arguments)


def test_times() -> None:
    assert [seconds_of(text) for text in ("90", "2m", "1h", "3d", "2w", "1y")] == [
        90, 120, 3_600, 259_200, 1_209_600, 31_536_000,
    ]  # fmt: skip


def test_a_cluster_makes_its_own_credentials_once(tmp_path: Path) -> None:
    said: list[str] = []
    config = ClusterConfig(home=tmp_path, auth={"enabled": True, "superuser_roles": ["root"]})

    def provide() -> AuthConfig:
        own = own_credentials(config.auth_config(), tmp_path, said.append, with_gateway=True)
        return config.with_auth(own).auth_config()

    made = provide()
    assert made.superuser_roles == ("root", "admin", "gateway")  # a proxy needs the rights of those it speaks for
    assert made.proxy_roles == ("gateway",)
    for file in ("token-secret.key", "admin.token"):
        assert mode(tmp_path / file) == 0o600
        assert any(str(tmp_path / file) in line for line in said)
    checks = TokenProvider(made)
    assert checks.check(made.gateway_token.encode()).role == "gateway"
    shown = Identity(token_file=str(tmp_path / "admin.token")).present()
    assert checks.check(shown.data).role == "admin"
    for secret in (made.token_secret_key, made.gateway_token, shown.data.decode()):
        assert secret not in repr(made)
        assert secret not in repr(config.with_auth({"token_secret_key": secret}).broker_config("broker-1"))
        assert not any(secret in line for line in said)
    said.clear()
    again = provide()
    assert again.token_secret_key == made.token_secret_key
    assert not said
    (tmp_path / "admin.token").write_text("old")
    provide()
    assert checks.check((tmp_path / "admin.token").read_bytes()).role == "admin"
    assert checks.check(helio("create", "-s", "bob").encode()).role == "bob"


def test_a_key_that_is_given_signs_the_clusters_tokens(tmp_path: Path) -> None:
    file = tmp_path / "given.key"
    file.write_bytes(b"g" * 32)
    given: dict[str, Any] = {
        "enabled": True,
        "token_secret_key": str(file),
        "token_audience_claim": "aud",
        "token_audience": "here",
    }
    own = own_credentials(AuthConfig(**given), tmp_path, lambda _: None, with_gateway=False)
    assert own == {"superuser_roles": ("admin",)}
    token = (tmp_path / "admin.token").read_bytes()
    assert jwt.decode(token, b"g" * 32, algorithms=["HS256"], audience="here")["sub"] == "admin"
    assert content_of(str(file), "x") == b"g" * 32


def test_without_a_secret_key_the_gateways_token_is_given(tmp_path: Path) -> None:
    config = AuthConfig(enabled=True, token_public_key="some")
    with pytest.raises(InvalidConfigError) as caught:
        own_credentials(config, tmp_path, lambda _: None, with_gateway=True)
    assert caught.value.field == "auth.gateway_token"
    assert own_credentials(config, tmp_path, lambda _: None, with_gateway=False) == {}
    assert own_credentials(AuthConfig(), tmp_path, lambda _: None, with_gateway=True) == {}

"""Keys and tokens that ``helio tokens`` and ``helio up`` make."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from typer.testing import CliRunner

from heliograph.auth.authenticator import RELOAD_SECONDS, Authenticator
from heliograph.auth.config import AuthConfig
from heliograph.auth.issuing import new_token, own_credentials, own_token, seconds_of
from heliograph.auth.keys import SECRET_KEYS_MAX, content_of, secret_keys
from heliograph.auth.principal import Credentials
from heliograph.auth.tokens import TokenProvider
from heliograph.base.errors import AuthenticationError, BadRequestError, HeliographError, InvalidConfigError
from heliograph.cli.app import app
from heliograph.cli.options import Target
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
    assert checks.check(own_token(made)().encode()).role == "gateway"
    shown = Identity(token_file=str(tmp_path / "admin.token")).present()
    assert checks.check(shown.data).role == "admin"
    for secret in (made.token_secret_key, shown.data.decode()):
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


def test_the_administrators_token_ends_and_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "admin.token"

    def left_days() -> float:
        claims = jwt.decode(file.read_text(), options={"verify_signature": False})
        return float(claims["exp"] - time.time()) / 86_400

    own_credentials(AuthConfig(enabled=True), tmp_path, lambda _: None, with_gateway=False)
    assert 29.9 < left_days() <= 30
    first = file.read_text()
    use = partial(Target.of, "heliograph", tmp_path)
    monkeypatch.delenv("HELIOGRAPH_TOKEN_FILE", raising=False)
    use()
    assert file.read_text() == first, "it is new"
    key = (tmp_path / "token-secret.key").read_bytes()
    for seconds in (20 * 86_400, None):  # older than a week; or of an earlier release, without an end
        file.write_text(new_token("admin", key, "HS256", seconds=seconds))
        os.utime(file, (0, 0))
        monkeypatch.delenv("HELIOGRAPH_TOKEN_FILE", raising=False)
        use()
        assert 29.9 < left_days() <= 30
        assert mode(file) == 0o600
    copied = tmp_path / "copied"  # a machine that has the token, and not the key
    copied.mkdir()
    (copied / "admin.token").write_text(first)
    os.utime(copied / "admin.token", (0, 0))
    monkeypatch.delenv("HELIOGRAPH_TOKEN_FILE", raising=False)
    Target.of("heliograph", copied)
    assert [path.name for path in copied.iterdir()] == ["admin.token"]
    assert (copied / "admin.token").read_text() == first


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


class Part:
    """A part of a cluster that was started with the credentials of a home."""

    def __init__(self, home: Path, *, sees_home: bool = True) -> None:
        config = ClusterConfig(home=home, auth={"enabled": True})
        own = own_credentials(config.auth_config(), home, lambda _: None, with_gateway=True)
        self.config = config.with_auth(own if sees_home else {**own, "token_secret_key_file": ""}).auth_config()
        self.now = 0.0
        self._authenticator = Authenticator(self.config, lambda: self.now)
        self.gateway_token = own_token(self.config)

    def takes(self, token: str | bytes) -> bool:
        """Return whether a token is right for this part after its next look at the files."""
        self.now += RELOAD_SECONDS
        shown = Credentials("token", token if isinstance(token, bytes) else token.encode())
        try:
            asyncio.run(self._authenticator.authenticate(shown))
        except AuthenticationError:
            return False
        return True


def test_a_new_key_signs_and_old_tokens_are_valid_until_the_old_key_is_retired(tmp_path: Path) -> None:
    part = Part(tmp_path)
    admin = tmp_path / "admin.token"
    before, old_admin, old_gateway = helio("create", "-s", "alice"), admin.read_bytes(), part.gateway_token()
    assert json.loads(helio("rotate", "--json"))["keys"] == 2
    after = helio("create", "-s", "alice")
    assert admin.read_bytes() != old_admin
    new_gateway = part.gateway_token()
    newest = secret_keys(content_of(str(tmp_path / "token-secret.key"), "k"))[0].key
    for token in (after, new_gateway, admin.read_bytes()):
        assert jwt.decode(token, newest, algorithms=["HS256"])["sub"] in ("alice", "gateway", "admin")
        assert part.takes(token)
    for token in (before, old_admin, old_gateway):
        assert part.takes(token)
    assert helio("validate", before)
    assert json.loads(helio("rotate", "--retire", "--json")) == {
        "key_file": str(tmp_path / "token-secret.key"), "keys": 1, "retired": 1,
    }  # fmt: skip
    for token in (before, old_admin, old_gateway):
        assert not part.takes(token)
    for token in (after, new_gateway, admin.read_bytes(), part.gateway_token()):
        assert part.takes(token)
    assert mode(tmp_path / "token-secret.key") == mode(admin) == 0o600
    assert Part(tmp_path).takes(after), "a part that starts later has the new key"


def test_a_replaced_key_acts_without_a_restart_where_the_file_is(tmp_path: Path) -> None:
    part, elsewhere = Part(tmp_path), Part(tmp_path, sees_home=False)
    before = helio("create", "-s", "alice")
    (tmp_path / "token-secret.key").write_bytes(b"n" * 32)
    after = helio("create", "-s", "alice")
    assert [part.takes(before), part.takes(after)] == [False, True]
    assert [elsewhere.takes(before), elsewhere.takes(after)] == [True, False]


def test_keys_are_not_made_without_end_and_any_bytes_are_a_key(tmp_path: Path) -> None:
    file = tmp_path / "k"
    file.write_bytes(b'{"' + b"k" * 32)
    token = helio("create", "--secret-key", file, "-s", "alice")
    for _ in range(SECRET_KEYS_MAX - 1):
        helio("rotate", "--key-file", file)
    assert helio("validate", token, "--secret-key", file)
    with pytest.raises(BadRequestError, match="retire"):
        helio("rotate", "--key-file", file)
    helio("rotate", "--retire", "--key-file", file)
    with pytest.raises(AuthenticationError):
        helio("validate", token, "--secret-key", file)
    assert len(file.read_bytes()) == 32, "one key is kept as Pulsar's tools write it"
    assert not (tmp_path / "admin.token").exists()


@pytest.mark.parametrize(
    "keys",
    [[{"kty": "RSA", "n": "AQAB", "e": "AQAB"}], [{"kty": "oct", "k": "c2hvcnQ"}], [],
     [{"kty": "oct", "kid": str(n), "k": "a" * 43} for n in range(SECRET_KEYS_MAX + 1)]],
    ids=["a public key", "short", "none", "too many"],
)  # fmt: skip
def test_sets_that_are_no_secret_keys_are_refused(keys: list[dict[str, str]]) -> None:
    with pytest.raises(InvalidConfigError):
        secret_keys(json.dumps({"keys": keys}).encode())

"""The method ``token``: which tokens are taken, and the attacks that are refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.server
import itertools
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from heliograph.auth import keys, remote_keys
from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import TOKEN_BYTES_MAX, Credentials, revocation_id
from heliograph.auth.remote_keys import RemoteKeySet
from heliograph.auth.tokens import TokenProvider
from heliograph.base.errors import AuthenticationError, InvalidConfigError
from heliograph.base.processes import wait_until
from heliograph.base.tls.authority import CertificateAuthority
from tests.unit.auth.keys import SECRET, der, ec_key, pem, rsa_key, token

INLINE = "data:;base64," + base64.b64encode(SECRET).decode()


def provider(**settings: Any) -> TokenProvider:
    return TokenProvider(AuthConfig(enabled=True, **({"token_secret_key": INLINE} | settings)))


def public(tmp_path: Path, content: bytes, **settings: Any) -> TokenProvider:
    file = tmp_path / "public.key"
    file.write_bytes(content)
    return TokenProvider(AuthConfig(enabled=True, token_public_key=str(file), **settings))


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> bytes:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def hmac_signed(header: dict[str, Any], claims: dict[str, Any], key: bytes) -> bytes:
    body = unsigned(header, claims).rpartition(b".")[0]
    return body + b"." + base64.urlsafe_b64encode(hmac.new(key, body, hashlib.sha256).digest()).rstrip(b"=")


@pytest.mark.parametrize("form", ["file", "path", "data", "base64"])
def test_a_key_is_given_in_four_ways(form: str, tmp_path: Path) -> None:
    file = tmp_path / "my secret.key"
    file.write_bytes(SECRET)
    text = {
        "file": file.as_uri(),
        "path": str(file),
        "data": INLINE,
        "base64": base64.b64encode(SECRET).decode(),
    }[form]
    found = provider(token_secret_key=text).check(token())
    assert (found.role, found.method, found.expires_ms, found.is_internal) == ("alice", "token", None, False)


def test_a_token_ends_when_it_says() -> None:
    end = int(time.time()) + 60
    assert provider().check(token(exp=end)).expires_ms == end * 1000
    assert provider(token_clock_skew_seconds=5).check(token(exp=end)).expires_ms == (end + 5) * 1000


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_long_secret_key_checks_all_of_hmac(algorithm: str) -> None:
    key = b"k" * 64
    checks = provider(token_secret_key=base64.b64encode(key).decode())
    assert checks.check(token(key=key, algorithm=algorithm)).role == "alice"


@pytest.mark.parametrize("written", [pem, der])
def test_a_public_key_is_pem_or_der(written: Any, tmp_path: Path) -> None:
    assert public(tmp_path, written(rsa_key())).check(token(key=rsa_key(), algorithm="RS256")).role == "alice"
    checks = public(tmp_path, written(ec_key()), token_public_alg="ES256")
    assert checks.check(token(key=ec_key(), algorithm="ES256")).role == "alice"


def test_the_algorithm_belongs_to_the_key(tmp_path: Path) -> None:
    checks = public(tmp_path, pem(rsa_key()))
    for algorithm in ("RS384", "PS256"):
        with pytest.raises(AuthenticationError, match="no key for the token's algorithm"):
            checks.check(token(key=rsa_key(), algorithm=algorithm))


# -- attacks


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", None, 7, ["HS256"]])
def test_a_token_without_a_signature_is_refused(alg: Any, tmp_path: Path) -> None:
    for checks in (provider(), public(tmp_path, pem(rsa_key()))):
        with pytest.raises(AuthenticationError):
            checks.check(unsigned({"alg": alg, "typ": "JWT"}, {"sub": "admin"}))
        with pytest.raises(AuthenticationError):
            checks.check(hmac_signed({"alg": alg}, {"sub": "admin"}, SECRET))


@pytest.mark.parametrize("written", [pem, der])
def test_the_public_key_is_no_secret_key(written: Any, tmp_path: Path) -> None:
    content = written(rsa_key())
    forged = hmac_signed({"alg": "HS256", "typ": "JWT"}, {"sub": "admin"}, content)
    with pytest.raises(AuthenticationError, match="no key for the token's algorithm"):
        public(tmp_path, content).check(forged)
    with pytest.raises(AuthenticationError, match="signature is wrong"):  # with a secret key beside it
        public(tmp_path, content, token_secret_key=INLINE).check(forged)
    jwks = tmp_path / "set.json"
    jwks.write_text(json.dumps({"keys": [json.loads(RSAAlgorithm.to_jwk(rsa_key().public_key())) | {"kid": "one"}]}))
    forged = hmac_signed({"alg": "HS256", "kid": "one"}, {"sub": "admin"}, content)
    with pytest.raises(AuthenticationError, match="algorithm that the key is not for"):
        TokenProvider(AuthConfig(enabled=True, token_jwks_file=str(jwks))).check(forged)


@pytest.mark.parametrize("kid", ["../../../../dev/null", "/dev/null", "file:///dev/null", "one' or '1'='1", 7, ["one"]])
def test_a_key_id_is_only_looked_up_in_the_set(kid: Any, tmp_path: Path) -> None:
    jwks = tmp_path / "set.json"
    jwks.write_text(json.dumps({"keys": [json.loads(RSAAlgorithm.to_jwk(rsa_key().public_key())) | {"kid": "one"}]}))
    checks = TokenProvider(AuthConfig(enabled=True, token_jwks_file=str(jwks)))
    with pytest.raises(AuthenticationError):
        checks.check(hmac_signed({"alg": "HS256", "kid": kid}, {"sub": "admin"}, b""))


def test_a_key_that_the_token_brings_is_not_used(tmp_path: Path) -> None:
    own = json.loads(RSAAlgorithm.to_jwk(rsa_key(1).public_key()))
    for header in ({"jwk": own}, {"jku": "http://127.0.0.1:1/keys"}, {"x5u": "http://127.0.0.1:1/key"}):
        forged = jwt.encode({"sub": "admin"}, rsa_key(1), algorithm="RS256", headers=header).encode()
        with pytest.raises(AuthenticationError, match="signature is wrong"):
            public(tmp_path, pem(rsa_key())).check(forged)


@pytest.mark.parametrize(
    "data", [b"", b"  \n", b"a", b"a.b", b"a.b.c", b"...", b"\xff\xfe.\x00.\x01", b"e30.e30.", b"[" * 8000]
)
def test_what_is_no_token_is_refused(data: bytes) -> None:
    with pytest.raises(AuthenticationError):
        provider().check(data)


def test_deeply_nested_bytes_are_refused() -> None:
    nested = base64.urlsafe_b64encode(b'{"a":' + b"[" * 5_000).rstrip(b"=")
    with pytest.raises(AuthenticationError, match="malformed"):
        provider().check(nested + b".e30.e30")


def test_a_large_token_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt, "get_unverified_header", lambda _: pytest.fail("it was parsed"))
    for size in (1 << 20, TOKEN_BYTES_MAX + 1):
        with pytest.raises(AuthenticationError, match=f"has {size} bytes"):
            provider().check(b"a" * size)


# -- claims


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"seconds": -1}, "has expired"),
        ({"nbf": 1 << 40}, "not valid yet"),
        ({"exp": "soon"}, "malformed"),
        ({"exp": [1]}, "malformed"),
        ({"nbf": {}}, "malformed"),
    ],
)
def test_the_times_of_a_token_are_checked(claims: dict[str, Any], says: str) -> None:
    with pytest.raises(AuthenticationError, match=says):
        provider().check(token(**claims))


def test_an_infinite_end_is_refused() -> None:
    body = (
        unsigned({"alg": "HS256"}, {}).partition(b".")[0] + b"." + base64.urlsafe_b64encode(b'{"sub":"a","exp":1e999}')
    )
    signature = hmac.new(SECRET, body.rstrip(b"="), hashlib.sha256).digest()
    with pytest.raises(AuthenticationError, match="malformed"):
        provider().check(body.rstrip(b"=") + b"." + base64.urlsafe_b64encode(signature).rstrip(b"="))


def test_clocks_may_differ_by_what_is_configured() -> None:
    checks = provider(token_clock_skew_seconds=30)
    assert checks.check(token(seconds=-10, nbf=int(time.time()) + 10)).role == "alice"
    with pytest.raises(AuthenticationError, match="has expired"):
        checks.check(token(seconds=-40))


@pytest.mark.parametrize("audience", ["here", ["there", "here"]])
def test_a_token_is_for_its_audience(audience: Any) -> None:
    checks = provider(token_audience_claim="aud", token_audience="here")
    assert checks.check(token(aud=audience)).role == "alice"
    for wrong in ("there", ["there"], [], None, {"here": 1}, 7):
        with pytest.raises(AuthenticationError, match="another audience"):
            checks.check(token(aud=wrong))
    assert provider().check(token(aud=audience)).role == "alice"  # where none is asked for


def test_another_claim_is_the_role() -> None:
    checks = provider(token_auth_claim="roles")
    assert checks.check(token(7, roles="bob")).role == "bob"
    assert checks.check(token(roles=["carol", "dave"])).role == "carol"
    wrong_roles: tuple[Any, ...] = ([], "", " ", None, 7, [7], {}, "x" * 1_025)
    for wrong in wrong_roles:
        with pytest.raises(AuthenticationError, match="role"):
            checks.check(token(roles=wrong))


# -- several keys, and new ones


def jwk(key: Any, kid: str, **further: Any) -> dict[str, Any]:
    kind = RSAAlgorithm if hasattr(key, "key_size") and key.key_size >= 2_048 else ECAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, **further}


def test_a_set_has_several_keys_and_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "set.json"
    file.write_text(json.dumps({"keys": [jwk(rsa_key(), "old"), jwk(ec_key(), "curve", alg="ES256")]}))
    checks = TokenProvider(AuthConfig(enabled=True, token_jwks_file=str(file)))
    old = token(key=rsa_key(), algorithm="RS256", kid="old")
    new = token("bob", key=rsa_key(1), algorithm="RS256", kid="new")
    assert checks.check(old).role == "alice"
    assert checks.check(token(key=ec_key(), algorithm="ES256", kid="curve")).role == "alice"
    for wrong in (new, token(key=rsa_key(1), algorithm="RS256", kid="old"), token(key=rsa_key(), algorithm="RS256")):
        with pytest.raises(AuthenticationError):
            checks.check(wrong)
    file.write_text(json.dumps({"keys": [jwk(rsa_key(1), "new")]}))
    checks.reload_if_changed()
    assert checks.check(new).role == "bob"
    with pytest.raises(AuthenticationError):
        checks.check(old)


def test_a_file_that_became_useless_leaves_the_old_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(SECRET)
    checks = provider(token_secret_key=str(file))
    for content in (b"short", None):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        checks.reload_if_changed()
        assert checks.check(token()).role == "alice"
        assert "the old content stays in use" in caplog.text
        caplog.clear()
        checks.reload_if_changed()
        assert not caplog.text, "one line for each change"
    file.write_bytes(b"t" * 32)
    checks.reload_if_changed()
    assert checks.check(token(key=b"t" * 32)).role == "alice"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"token_secret_key": base64.b64encode(b"short").decode()}, "has 5 bytes, at least 32"),
        ({"token_secret_key": "/no/such/file-"}, "neither a file that exists nor base64"),
        ({"token_secret_key": "file:///no/such/file"}, "cannot be read"),
        ({"token_secret_key": "data:text/plain,abc"}, "data:;base64"),
        ({"token_secret_key": "x" * 5_000 + "-"}, "neither a file that exists nor base64"),
        ({"token_public_key": base64.b64encode(b"nothing").decode()}, "no public key in DER or PEM"),
        ({"token_public_key": base64.b64encode(der(ec_key())).decode()}, "not a key for RS256"),
        ({"token_public_key": base64.b64encode(der(rsa_key())).decode(), "token_public_alg": "none"}, "must be one of"),
        (
            {"token_public_key": base64.b64encode(der(rsa_key())).decode(), "token_public_alg": "HS256"},
            "must be one of",
        ),
        ({"token_secret_key": base64.b64encode(pem(rsa_key())).decode()}, "is a PEM file"),
    ],
)
def test_a_key_that_cannot_be_used_is_named_and_not_shown(settings: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says) as caught:
        provider(**settings)
    assert all(
        value not in str(caught.value) for value in settings.values() if not value.startswith(("file", "HS", "none"))
    )


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"keys": []},
        {"keys": [7]},
        {"keys": [{"kty": "oct", "k": "c2hvcnQ", "kid": "a"}]},
        {"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "a"}]},
        {"keys": [jwk(rsa_key(), "a"), jwk(rsa_key(), "a")]},
        {"keys": [jwk(rsa_key(), "a", alg="none")]},
        {"keys": [jwk(rsa_key(), "a", alg="HS256")]},
        {"keys": [jwk(rsa_key(), "a", use="enc")]},
    ],
)
def test_a_set_that_cannot_be_used_is_refused(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "set.json"
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidConfigError, match="token_jwks_file"):
        TokenProvider(AuthConfig(enabled=True, token_jwks_file=str(file)))


def test_a_short_rsa_key_and_a_large_file_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)
    with pytest.raises(InvalidConfigError, match="at least 2048 bits"):
        provider(token_public_key=base64.b64encode(der(short)).decode())
    monkeypatch.setattr(keys, "KEY_FILE_BYTES_MAX", 64)
    file = tmp_path / "key"
    file.write_bytes(b"k" * 64)
    assert provider(token_secret_key=str(file)).has_keys
    file.write_bytes(b"k" * 65)
    with pytest.raises(InvalidConfigError, match="too large"):
        provider(token_secret_key=str(file))


def test_a_token_may_end_with_a_newline_as_that_of_a_file() -> None:
    assert provider().check(token() + b"\n").role == "alice"
    with pytest.raises(AuthenticationError, match="blank"):
        provider().check(b" \n")


def test_an_issuer_is_asked_for_where_it_is_set() -> None:
    checks = provider(token_issuer="https://issuer")
    assert checks.check(token(iss="https://issuer")).role == "alice"
    listed = hmac_signed({"alg": "HS256"}, {"sub": "alice", "iss": ["https://issuer"]}, SECRET)
    for one in (token(), token(iss="https://other"), listed):
        with pytest.raises(AuthenticationError, match="another issuer"):
            checks.check(one)


def test_a_token_is_known_by_its_id() -> None:
    assert provider().check(token(jti="t-1")).token_ids == (revocation_id("t-1"),)
    assert provider().check(token()).token_ids == ()
    assert provider().check(token(jti=7)).token_ids == ()


class Issuer:
    """Publishes keys by https, and counts how often it is asked."""

    def __init__(self, directory: Path) -> None:
        self.answer, self.status, self.asked = b"", 200, 0
        self.answers = threading.Event()
        self.answers.set()
        authority = CertificateAuthority(directory)
        authority.ensure(["127.0.0.1"])
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.answers.wait(60)
                self.send_response(issuer.status)
                self.send_header("Location", "http://127.0.0.1/")
                self.end_headers()
                self.wfile.write(issuer.answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "parts.pem", directory / "parts.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_port}/keys"

    def publish(self, *keys: tuple[str, Any]) -> None:
        listed = [{**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": kid} for kid, key in keys]
        self.answer = json.dumps({"keys": listed}).encode()


@pytest.fixture
def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    made = Issuer(tmp_path / "issuer")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "issuer" / "ca.pem"))
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


async def test_keys_of_an_issuer_are_fetched_kept_and_followed(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = rsa_key(), rsa_key(1)
    issuer.publish(("one", first))
    checks = TokenProvider(AuthConfig(enabled=True, token_jwks_url=issuer.url))
    old, new = (token(key=key, algorithm="RS256", kid=kid) for kid, key in (("one", first), ("two", second)))
    for _ in range(3):
        assert (await checks.authenticate(Credentials("token", old))).role == "alice"
    assert issuer.asked == 1, "they are kept"
    issuer.publish(("one", first), ("two", second))
    for _ in range(3):  # strangers can name unknown keys, too
        with pytest.raises(AuthenticationError, match="no key"):
            await checks.authenticate(Credentials("token", new))
    assert issuer.asked == 1
    monkeypatch.setattr(remote_keys, "UNKNOWN_SECONDS", 0.0)
    assert (await checks.authenticate(Credentials("token", new))).role == "alice"
    assert issuer.asked == 2
    for status, answer in ((500, issuer.answer), (302, b""), (200, b"{}"), (200, b" " * (keys.KEY_FILE_BYTES_MAX + 1))):
        issuer.status, issuer.answer = status, answer
        assert checks._remote is not None
        checks._remote._fetch()
        assert (await checks.authenticate(Credentials("token", new))).role == "alice", "the last good set stays"
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(http.server.BaseHTTPRequestHandler, "protocol_version", "no HTTP")
        remote(checks)._fetch()
    assert (await checks.authenticate(Credentials("token", new))).role == "alice"
    issuer.publish(("two", second))
    issuer.status = 200
    monkeypatch.setattr(remote_keys, "REFRESH_SECONDS", 0.0)
    checks.reload_if_changed()
    await asyncio.to_thread(wait_until, lambda: "one" not in remote(checks).value, 30)
    with pytest.raises(AuthenticationError, match="no key"):
        await checks.authenticate(Credentials("token", old))


def remote(checks: TokenProvider) -> RemoteKeySet:
    assert checks._remote is not None
    return checks._remote


async def test_an_issuer_that_does_not_answer_holds_log_ins_for_a_bounded_time_alone(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = rsa_key(), rsa_key(1)
    issuer.publish(("one", first))
    monkeypatch.setattr(remote_keys, "ANSWER_SECONDS", 600.0)
    checks = provider(token_jwks_url=issuer.url)
    by_one, by_two = (token(key=key, algorithm="RS256", kid=kid) for kid, key in (("one", first), ("two", second)))
    assert (await checks.authenticate(Credentials("token", by_one))).role == "alice", "it waits for the first fetch"
    issuer.answers.clear()
    monkeypatch.setattr(remote_keys, "UNKNOWN_SECONDS", 0.0)
    monkeypatch.setattr(remote_keys, "LOGIN_SECONDS", 0.01)
    for _ in range(3):
        with pytest.raises(AuthenticationError, match="no key"):
            await checks.authenticate(Credentials("token", by_two))
    assert not remote(checks)._fetched.done()
    with monkeypatch.context() as patched:
        patched.setattr(RemoteKeySet, "look_for_more", None)
        for known in (by_one, token()):
            assert (await checks.authenticate(Credentials("token", known))).role == "alice", "no fetch could help it"
    await asyncio.to_thread(wait_until, lambda: issuer.asked >= 2, 30)  # log-ins may give up before it has connected
    assert issuer.asked == 2, "one fetch at a time"
    issuer.publish(("two", second))
    issuer.answers.set()
    monkeypatch.setattr(remote_keys, "LOGIN_SECONDS", 30.0)
    assert (await checks.authenticate(Credentials("token", by_two))).role == "alice"


def test_an_answer_that_drips_is_given_up(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(0, remote_keys.ANSWER_SECONDS * 0.6)
    keys_of_it = RemoteKeySet(issuer.url, lambda: next(ticks))
    keys_of_it._fetched.result(30)
    issuer.publish(("one", rsa_key()))
    issuer.answer = b" " * (1 << 19) + issuer.answer  # more than one part
    keys_of_it._fetch()
    assert keys_of_it.value == {}
    still = RemoteKeySet(issuer.url, lambda: 0.0)
    still._fetched.result(30)
    assert list(still.value) == ["one"]


def test_keys_come_by_https_from_a_server_that_is_trusted(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfigError, match="https") as raised:
        TokenProvider(AuthConfig(enabled=True, token_jwks_url="http://127.0.0.1/keys"))
    assert raised.value.field == "auth.token_jwks_url"
    issuer.publish(("one", rsa_key()))
    monkeypatch.delenv("SSL_CERT_FILE")
    refused = RemoteKeySet(issuer.url)
    refused._fetched.result(30)
    assert refused.value == {}

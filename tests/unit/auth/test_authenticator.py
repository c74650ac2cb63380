"""The authenticator: methods, passwords, certificates, plug-ins, proxies, and what the log says."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from passlib.context import CryptContext

from heliograph.auth import authenticator as module
from heliograph.auth import basic
from heliograph.auth.authenticator import LOG_LINES_MAX, Authenticator
from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import INTERNAL, Credentials, Principal
from heliograph.auth.provider import AuthenticationProvider
from heliograph.base.errors import AuthenticationError, InvalidConfigError, NotPermittedError
from tests.unit.auth.keys import SECRET, token

KEY = base64.b64encode(SECRET).decode()
HASHES = CryptContext(schemes=["bcrypt", "apr_md5_crypt", "sha512_crypt"], bcrypt__rounds=4, sha512_crypt__rounds=1_000)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def authenticator(clock: Clock, **settings: Any) -> Authenticator:
    given: dict[str, Any] = {"enabled": True, "token_secret_key": KEY, **settings}
    return Authenticator(AuthConfig(**given), clock)


def by_token(data: bytes) -> Credentials:
    return Credentials("token", data)


async def test_without_authentication_all_callers_are_let_in(clock: Clock) -> None:
    off = authenticator(clock, enabled=False)
    assert await off.authenticate(by_token(b"nonsense")) is INTERNAL
    assert await off.authenticate_original(INTERNAL, "bob") is INTERNAL


async def test_a_caller_hears_nothing_and_the_log_everything(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    checks = authenticator(clock)
    bad = token(seconds=-9)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AuthenticationError, match=r"^Failed to authenticate$") as caught:
        await checks.authenticate(by_token(bad), "10.0.0.7:1234")
    assert caught.value.__cause__ is None
    assert "10.0.0.7:1234: refused: the token has expired" in caplog.text
    for data in (bad, b"x" * 9_000, b"a.b.c", bad.rpartition(b".")[0] + b".AAAA"):
        with pytest.raises(AuthenticationError):
            await checks.authenticate(by_token(data))
        for record in caplog.records:
            assert data.decode()[:40] not in record.getMessage()
            assert record.exc_info is None


async def test_refusals_do_not_fill_the_log(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    checks = authenticator(clock)
    for _ in range(LOG_LINES_MAX + 30):
        with pytest.raises(AuthenticationError):
            await checks.authenticate(by_token(b"a"))
    assert len(caplog.records) == LOG_LINES_MAX
    clock.now += 10
    with pytest.raises(AuthenticationError):
        await checks.authenticate(by_token(b"a"))
    assert "30 more callers were refused" in caplog.text


@pytest.mark.parametrize("method", ["none", "", "basic", "athenz", "x" * 500])
async def test_a_method_that_is_not_configured_is_anonymous_or_refused(clock: Clock, method: str) -> None:
    with pytest.raises(AuthenticationError):
        await authenticator(clock).authenticate(Credentials(method))
    found = await authenticator(clock, anonymous_role="guest").authenticate(Credentials(method))
    assert found == Principal("guest")
    with pytest.raises(AuthenticationError):  # a bad token is no missing one
        await authenticator(clock, anonymous_role="guest").authenticate(by_token(b""))


async def test_keys_are_read_again_about_once_a_second(clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(SECRET)
    checks = authenticator(clock, token_secret_key=str(file))
    file.write_bytes(b"t" * 32)
    assert (await checks.authenticate(by_token(token()))).role == "alice"
    clock.now += 1
    assert (await checks.authenticate(by_token(token("bob", b"t" * 32)))).role == "bob"


# -- basic


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    lines = [f"{name}:{HASHES.handler(name).hash(name + '-pw')}" for name in HASHES.schemes()]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def with_users(clock: Clock, users: Path) -> Iterator[Authenticator]:
    made = authenticator(clock, basic_file=str(users))
    yield made
    made.close()


async def test_users_and_passwords(with_users: Authenticator, caplog: pytest.LogCaptureFixture) -> None:
    for name in HASHES.schemes():
        assert await with_users.authenticate(Credentials("basic", f"{name}:{name}-pw".encode())) == Principal(
            name, method="basic"
        )
    for wrong in (b"bcrypt:nonsense", b"nobody:nonsense", b"bcrypt", b":nonsense", b"bcrypt:", b"", b"\xff:x", b"a\0:x",
                  b"bcrypt:" + b"p" * 2_000, b"bcrypt:" + b"p" * 100):  # fmt: skip
        with pytest.raises(AuthenticationError, match=r"^Failed to authenticate$"):
            await with_users.authenticate(Credentials("basic", wrong))
    assert "nonsense" not in caplog.text


async def test_a_right_password_is_checked_once_until_the_file_changes(
    with_users: Authenticator, users: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Credentials("basic", b"bcrypt:bcrypt-pw")
    await with_users.authenticate(right)
    checked: list[str] = []
    matches = basic._matches

    def counted(password: bytes, known: str) -> bool:
        checked.append(known)
        return matches(password, known)

    monkeypatch.setattr(basic, "_matches", counted)
    await with_users.authenticate(right)
    assert not checked
    with pytest.raises(AuthenticationError):
        await with_users.authenticate(Credentials("basic", b"bcrypt:bcrypt-pw2"))
    with pytest.raises(AuthenticationError):
        await with_users.authenticate(Credentials("basic", b"nobody:nonsense"))
    assert len(checked) == 2, "an unknown user takes as long as a known one"
    users.write_text(f"bcrypt:{HASHES.hash('changed')}\n")
    clock.now += 1
    with pytest.raises(AuthenticationError):
        await with_users.authenticate(right)
    assert (await with_users.authenticate(Credentials("basic", b"bcrypt:changed"))).role == "bcrypt"


async def test_remembered_passwords_are_bounded(with_users: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basic, "CACHED_MAX", 2)
    for name in HASHES.schemes():
        await with_users.authenticate(Credentials("basic", f"{name}:{name}-pw".encode()))
    found = with_users._providers["basic"]
    assert isinstance(found, basic.BasicProvider)
    assert len(found._right) == 2


async def test_passwords_that_are_long_or_too_many_reach_no_thread(
    with_users: Authenticator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checked: list[bytes] = []

    def matches(password: bytes, known: str) -> bool:
        checked.append(password)
        return False

    monkeypatch.setattr(basic, "_matches", matches)
    for bound, data in (("DATA_BYTES_MAX", b"bcrypt:" + b"p" * basic.DATA_BYTES_MAX), ("WAITING_MAX", b"bcrypt:x")):
        if bound == "WAITING_MAX":
            monkeypatch.setattr(basic, bound, 0)
        with pytest.raises(AuthenticationError):
            await with_users.authenticate(Credentials("basic", data))
    assert checked == []
    assert "the limit is" in caplog.text
    assert "wait already" in caplog.text


@pytest.mark.parametrize("content", ["alice:plain\n", "no colon\n"])
def test_a_file_of_users_without_hashes_is_refused(clock: Clock, tmp_path: Path, content: str) -> None:
    (tmp_path / "users").write_text(content)
    with pytest.raises(InvalidConfigError, match="basic_file"):
        authenticator(clock, basic_file=str(tmp_path / "users"))


# -- tls


def subject(*names: tuple[str, str]) -> Credentials:
    return Credentials("tls", certificate={"subject": tuple((name,) for name in names)})


async def test_the_role_is_the_common_name_of_the_certificate(clock: Clock) -> None:
    checks = authenticator(clock)
    found = await checks.authenticate(subject(("organizationName", "o"), ("commonName", "alice")))
    assert found == Principal("alice", method="tls")
    for wrong in (subject(), subject(("commonName", " ")), subject(("commonName", "a"), ("commonName", "b")),
                  Credentials("tls", b"alice"), Credentials("tls", certificate={})):  # fmt: skip
        with pytest.raises(AuthenticationError):
            await checks.authenticate(wrong)


# -- plug-ins


class Greeting(AuthenticationProvider):
    method = "greeting"

    def __init__(self, config: AuthConfig) -> None:
        self.config = config

    async def authenticate(self, credentials: Credentials) -> Principal:
        if credentials.data == b"crash":
            raise RuntimeError("secret words")
        return Principal(credentials.data.decode(), method=self.method)


def plugged(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    group = "heliograph.authentication"
    points = EntryPoints(EntryPoint(name, f"{__name__}:{name}", group) for name in names)
    monkeypatch.setattr(module, "entry_points", lambda **given: points.select(**given))


async def test_a_plug_in_adds_a_method(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugged(monkeypatch, "Greeting")
    checks = authenticator(clock, providers=("Greeting",))
    assert (await checks.authenticate(Credentials("greeting", b"dora"))).role == "dora"
    with pytest.raises(AuthenticationError):
        await checks.authenticate(Credentials("greeting", b"crash"))
    assert "failed with RuntimeError" in caplog.text
    assert "secret words" not in caplog.text


def test_a_plug_in_that_is_not_there_is_named(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(monkeypatch, "Greeting", "Clock")
    for names, says in ((("other",), "'other'"), (("Clock",), "Clock"), (("Greeting", "Greeting"), "one method")):
        with pytest.raises((InvalidConfigError, TypeError), match=says):
            authenticator(clock, providers=names)


# -- proxies


async def test_a_proxy_speaks_for_the_caller_that_it_names(clock: Clock) -> None:
    checks = authenticator(clock, proxy_roles=("gateway", "other"))
    gateway, alice = Principal("gateway", method="token"), Principal("alice", method="token")
    found = await checks.authenticate_original(gateway, "bob")
    assert (found.role, found.via, found.roles) == ("bob", "gateway", ("bob", "gateway"))
    assert await checks.authenticate_original(alice, "") is alice
    assert (await checks.authenticate_original(gateway, "", by_token(token("carol")))).role == "carol"
    for principal, role in ((gateway, ""), (gateway, " "), (gateway, "other"), (gateway, "gateway"), (alice, "bob")):
        with pytest.raises(NotPermittedError, match=r"^Invalid roles\.$"):
            await checks.authenticate_original(principal, role)
    with pytest.raises(NotPermittedError, match=r"^Invalid roles\.$"):
        await checks.authenticate_original(gateway, "bob", by_token(token("carol")))
    with pytest.raises(AuthenticationError):
        await checks.authenticate_original(gateway, "bob", by_token(token("bob", b"x" * 32)))

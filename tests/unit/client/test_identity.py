"""What a client shows brokers, from where it comes, and that no print, log or error shows it."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

import heliograph
from heliograph.base.errors import AuthenticationError, InvalidConfigError
from heliograph.client.identity import Identity
from heliograph.client.options import ClientOptions
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.world import client_of
from tests.waits import until

URLS = ("pulsar://127.0.0.1:1",)


def supplied() -> str:
    return "hidden-words"


def failing() -> str:
    raise RuntimeError("hidden-words")


def shown(**options: Any) -> tuple[str, bytes]:
    found = ClientOptions(URLS, **options).identity.present()
    return found.method, found.data


def test_what_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    assert shown() == ("none", b"")
    assert shown(token="one") == ("token", b"one")
    assert shown(token=supplied) == ("token", b"hidden-words")
    assert shown(token_file=str(file)) == ("token", b"one")
    file.write_text("two")
    assert shown(token_file=str(file)) == ("token", b"two")
    assert shown(user="alice", password="a:b") == ("basic", b"alice:a:b")
    assert Identity().present(has_certificate=True).method == "tls"


def test_a_source_that_fails_names_no_secret(tmp_path: Path) -> None:
    for options in ({"token": failing}, {"token": lambda: 7}, {"token_file": str(tmp_path / "none")}):
        with pytest.raises(AuthenticationError) as caught:
            shown(**options)
        assert "hidden-words" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"token": "a", "token_file": "b"}, {"token": "a", "user": "b", "password": "c"}, {"user": "a"}]
)
def test_one_identity_is_given(options: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError, match="give"):
        ClientOptions(URLS, **options)  # type: ignore[arg-type]


SECRETS: list[dict[str, Any]] = [
    {"token": "hidden-words"},
    {"token": supplied},
    {"user": "a", "password": "hidden-words"},
]


@pytest.fixture
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HELIOGRAPH_TOKEN", "HELIOGRAPH_TOKEN_FILE", "HELIOGRAPH_USER", "HELIOGRAPH_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("options", SECRETS)
async def test_handles_show_their_identity_and_print_none_of_it(options: dict[str, Any]) -> None:
    async with FakeBroker() as broker, await client_of(broker, carry_token=True, **options) as client:
        producer = client.producer("t")
        await producer.open()
        for each in (client, producer, client.options, client.options.identity):
            assert "hidden-words" not in repr(each)
        copied = pickle.loads(pickle.dumps(producer))
        assert "hidden-words" not in repr(copied)
        async with copied:
            pass
        assert [b"hidden-words" in each.connect.auth_data for each in broker.of_type(T.CONNECT)] == [True, True]


@pytest.mark.parametrize("options", SECRETS)
@pytest.mark.usefixtures("_no_environment")
def test_a_pickle_holds_no_credentials_unless_asked(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pickle.loads(pickle.dumps(ClientOptions(URLS, carry_token=True, **options)))
    assert b"hidden-words" in asked.identity.present().data
    made = ClientOptions(URLS, **options)
    assert copy.deepcopy(made).identity == made.identity
    client = heliograph.AsyncClient(made)
    for each in (made, client, client.topic("t"), client.producer("t"), client.reader("t"), client.consumer("t", "s")):
        pickled = pickle.dumps(each)
        assert b"hidden-words" not in pickled
        assert b"supplied" not in pickled
    bare = pickle.loads(pickle.dumps(made))
    assert bare.identity == Identity()
    monkeypatch.setenv("HELIOGRAPH_TOKEN", "of this process")
    for one in (made, bare):  # also one that was pickled where there were none
        assert pickle.loads(pickle.dumps(one)).identity.present().data == b"of this process"
    assert pickle.loads(pickle.dumps(ClientOptions(URLS))).identity == Identity(), "there was nothing to leave out"


@pytest.mark.usefixtures("_no_environment")
def test_a_path_of_a_token_is_pickled(tmp_path: Path) -> None:
    options = ClientOptions(URLS, token_file=str(tmp_path / "token"))
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.usefixtures("_no_environment")
async def test_what_an_unpickled_handle_lacks_is_said_where_the_broker_refuses_it() -> None:
    async with FakeBroker() as broker, await client_of(broker, token="hidden-words") as client:
        copied = pickle.loads(pickle.dumps(client))
        broker.refuse(T.CONNECT, pb.AUTHENTICATION_ERROR, "no token was shown")
        with pytest.raises(AuthenticationError, match=r"no token was shown; .*HELIOGRAPH_TOKEN.*carry_token=True"):
            await copied.ping()
        await copied.close()


async def test_a_supplier_is_asked_at_each_connection_and_challenge(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asked: list[str] = []

    def supply() -> str:
        asked.append(f"hidden-{len(asked)}")
        return asked[-1]

    async with FakeBroker() as broker, await client_of(broker, token=supply) as client:
        assert broker.of_type(T.CONNECT)[0].connect.feature_flags.supports_auth_refresh
        challenge = pb.CommandAuthChallenge(
            challenge=pb.AuthData(auth_method_name="token", auth_data=b"PulsarAuthRefresh")
        )
        broker.connections[0].answer(auth_challenge=challenge)
        await until(lambda: len(broker.of_type(T.AUTH_RESPONSE)) == 1)
        answer = broker.of_type(T.AUTH_RESPONSE)[0].auth_response.response
        assert (answer.auth_method_name, answer.auth_data) == ("token", b"hidden-1")
        broker.drop_connections()
        await until(lambda: not broker.connections)
        await client.partitions("t")
        assert broker.of_type(T.CONNECT)[1].connect.auth_data == b"hidden-2"
    assert "hidden-" not in caplog.text


async def test_a_supplier_that_fails_at_a_challenge_ends_the_connection() -> None:
    answers = ["first"]
    async with FakeBroker() as broker, await client_of(broker, token=lambda: answers.pop()):
        broker.connections[0].answer(auth_challenge=pb.CommandAuthChallenge())
        await until(lambda: not broker.connections)
        assert not broker.of_type(T.AUTH_RESPONSE)


async def test_the_environment_is_used_where_nothing_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file")
    monkeypatch.setenv("HELIOGRAPH_USER", "u")
    monkeypatch.setenv("HELIOGRAPH_PASSWORD", "p")
    async with FakeBroker() as broker:
        await (await heliograph.connect_async(broker.url)).close()
        monkeypatch.setenv("HELIOGRAPH_TOKEN_FILE", str(file))
        for options in ({}, {"token": "given"}, {"user": "a", "password": "b"}):
            await (await heliograph.connect_async(broker.url, **options)).close()
        monkeypatch.setenv("HELIOGRAPH_TOKEN", "from-variable")
        await (await heliograph.connect_async(broker.url, original_principal="bob")).close()
        sent = [each.connect for each in broker.of_type(T.CONNECT)]
        assert [each.auth_data for each in sent] == [b"u:p", b"from-file", b"given", b"a:b", b"from-variable"]
        assert sent[4].original_principal == "bob"

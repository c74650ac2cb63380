"""The releases in the greeting of the embedded metadata store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heliograph.base import version
from heliograph.base.errors import VersionMismatchError
from heliograph.metadata.backends.embedded import protocol, session
from heliograph.metadata.backends.embedded.protocol import PROTOCOL_VERSION, greeting_version
from heliograph.metadata.backends.embedded.server import service
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.connect import connect_store
from heliograph.metadata.credentials import with_secrets


@pytest.mark.parametrize("secret", [None, "a secret, of this cluster"])
@pytest.mark.parametrize(
    ("server", "client", "refusal"),
    [
        ("0.2.0", "0.2.0", ""),
        ("0.2.0", "0.1.0", ""),
        ("0.1.0", "0.2.0", ""),
        ("0.3.0", "0.1.0", r"has version 0\.1\.0, and here is 0\.3\.0"),
        ("0.1.0", "0.3.0", r"has version 0\.3\.0, and here is 0\.1\.0"),
        ("said not", "0.2.0", ""),
        ("said not", "0.3.0", r"has version 0\.1\.0, and here is 0\.3\.0"),
        ("0.2.0", "said not", ""),
        ("0.3.0", "said not", r"has version 0\.1\.0, and here is 0\.3\.0"),
    ],
)
def test_neighbours_talk_and_others_are_told_both_versions(
    secret: str | None, server: str, client: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends are in one process: what a server checks, and what a client says, are replaced."""
    is_old_server, is_old_client = server == "said not", client == "said not"
    monkeypatch.setattr(version, "VERSION", client if is_old_server else server)
    if is_old_server:
        monkeypatch.setattr(service, "split_version", lambda said: (said, version.own_release()))
        monkeypatch.setattr(service, "says_release", lambda said: False)
    elif not is_old_client:
        said = PROTOCOL_VERSION | version.release_of(client).number << protocol._RELEASE_SHIFT
        monkeypatch.setattr(session, "greeting_version", lambda with_release: said)
        monkeypatch.setattr(session, "require_meeting", lambda release, name: None)  # the server does, in these cases
    else:
        monkeypatch.setattr(session, "greeting_version", lambda with_release: PROTOCOL_VERSION)
        monkeypatch.setattr(session, "require_meeting", lambda release, name: None)

    async def scenario() -> None:
        serving = EmbeddedServer(tmp_path, "127.0.0.1", secret=secret)
        await serving.start()
        url = with_secrets(f"embedded://{serving.address}", secret)
        try:
            if refusal:
                with pytest.raises(VersionMismatchError, match=refusal):
                    await connect_store(url)
                return
            store = await connect_store(url)
            await store.create("/a", b"1")
            await store.close()
        finally:
            await serving.stop()

    asyncio.run(scenario())


def test_the_version_of_a_greeting_begins_with_the_protocol() -> None:
    assert greeting_version(with_release=False) == PROTOCOL_VERSION
    assert protocol.split_version(greeting_version(with_release=True)) == (PROTOCOL_VERSION, version.own_release())

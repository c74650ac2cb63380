"""The versions in a HELLO and in its answer."""

from __future__ import annotations

import pytest

from heliograph.actors.errors import BookieVersionError, FrameError
from heliograph.actors.wire.greeting import check_answer, hello, hello_fault
from heliograph.actors.wire.messages import Answer, Status
from heliograph.base import version
from heliograph.base.version import Release, own_release

HERE = ("bookie-1", "127.0.0.1:1")


def test_both_ends_of_one_release_agree() -> None:
    assert hello_fault(hello(), "bookie-1") == ""
    check_answer(Answer(0, Status.OK, own_release().number, "bookie-1"), *HERE)


def test_a_peer_of_the_first_release_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = hello()._replace(limit=0)
    monkeypatch.setattr(version, "VERSION", "0.2.0")
    assert hello_fault(silent, "bookie-1") == ""
    check_answer(Answer(0, Status.OK, -1, "bookie-1"), *HERE)
    monkeypatch.setattr(version, "VERSION", "0.3.0")
    assert "has version 0.1.0, and here is 0.3.0" in hello_fault(silent, "bookie-1")
    with pytest.raises(BookieVersionError, match=r"bookie bookie-1 has version 0\.1\.0, and here is 0\.3\.0"):
        check_answer(Answer(0, Status.OK, -1, "bookie-1"), *HERE)


def test_a_refusal_for_the_version_is_told_as_one() -> None:
    far = hello()._replace(limit=Release(7, 0).number)
    why = hello_fault(far, "bookie-1")
    assert "7.0.0" in why
    with pytest.raises(BookieVersionError, match=r"7\.0\.0"):
        check_answer(Answer(0, Status.BAD_VERSION, text=why), *HERE)


def test_another_protocol_or_bookie_is_refused() -> None:
    assert "protocol 9" in hello_fault(hello()._replace(ledger_id=9), "bookie-1")
    with pytest.raises(FrameError, match=r"another bookie, bookie-2, answers at 127\.0\.0\.1:1"):
        check_answer(Answer(0, Status.OK, own_release().number, "bookie-2"), *HERE)
    with pytest.raises(FrameError, match="secret"):
        check_answer(Answer(0, Status.UNAUTHORIZED), *HERE)

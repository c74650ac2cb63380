"""Versions: which may meet; and what says which extra installs a missing package."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base import version
from heliograph.base.errors import BadRequestError, ResourceError, VersionMismatchError
from heliograph.base.version import (
    UNSAID,
    VERSION,
    Release,
    extra_required,
    install_advice,
    release_numbered,
    release_of,
    require_meeting,
)
from heliograph.cli.output import Output


@pytest.mark.parametrize(("name", "extra"), [("ray.exceptions", "cluster"), ("kazoo", "cluster"), ("pyarrow", "spark")])
def test_the_extra_is_named(name: str, extra: str) -> None:
    with (
        pytest.raises(ResourceError, match=rf"needs {name.partition('.')[0]}: pip install '.*\[{extra}\]'"),
        extra_required(),
    ):
        raise ModuleNotFoundError("gone", name=name)


def test_other_packages_are_not_ours_to_advise_on() -> None:
    assert install_advice(ImportError("no name")) == ""
    with pytest.raises(ModuleNotFoundError, match="gone"), extra_required():
        raise ModuleNotFoundError("gone", name="scipy")


def test_a_command_says_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).error(ModuleNotFoundError("No module named 'ray'", name="ray"))
    assert capsys.readouterr().err == "error: this needs ray: pip install 'heliograph-ray[cluster]'\n"


def test_the_version_of_the_code_is_that_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("0.1.0", "0.1.9", True),
        ("0.1.0", "0.2.0rc1", True),
        ("0.1.0", "0.3.0", False),
        ("1.4.2", "1.3", True),
        ("0.9.0", "1.0.0", True),
        ("0.8.0", "1.0.0", False),
        ("0.9.0", "1.1.0", False),
        ("1.0.0", "2.0.0", False),  # major version 1 is not finished
    ],
)
def test_neighbours_may_meet(one: str, other: str, meet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "LAST_MINORS", {0: 9})
    assert release_of(one).meets(release_of(other)) is release_of(other).meets(release_of(one)) is meet


@given(st.tuples(*[st.integers(0, 999)] * 3))
def test_a_release_is_one_number(parts: tuple[int, int, int]) -> None:
    release = Release(*parts)
    assert release_of(str(release)) == release
    assert release_numbered(release.number) == (release if any(parts) else UNSAID)


@pytest.mark.parametrize("number", [-1, 0, 1 << 30])
def test_a_greeting_without_a_release_is_of_the_first(number: int) -> None:
    assert release_numbered(number) == UNSAID


def test_a_peer_too_far_away_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "VERSION", "0.3.0")
    require_meeting(Release(0, 2), "bookie bookie-1")
    with pytest.raises(VersionMismatchError, match=r"bookie bookie-1 has version 0\.1\.0, and here is 0\.3\.0"):
        require_meeting(UNSAID, "bookie bookie-1")


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(BadRequestError, match="no version"):
        release_of("unknown")

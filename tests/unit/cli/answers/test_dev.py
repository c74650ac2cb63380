"""``helio dev`` beside a configuration file, and the log that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.cluster.settings.location import FILE_NAME
from tests.unit.cli.answers.test_mistakes import answer

USED = "`helio dev` does not use {} of <home>/cluster.toml, which `helio up` reads: give another --home, or --temporary"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("brokers = 3\n", USED.format("brokers")),
        ('[broker]\nhost = "::1"\n', USED.format("broker.host")),
        ("brokres = 3\n", "there is no setting named brokres; the nearest name is brokers"),
    ],
)
def test_a_file_with_settings_is_refused(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert answer("helio dev", tmp_path, capsys, monkeypatch) == f"error: {said}\n(2)"
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_the_log_has_a_level_and_a_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_LOGS__LEVEL", "LOUD")
    assert answer("helio dev", tmp_path, capsys, monkeypatch).startswith("error: logs.level is 'LOUD'")

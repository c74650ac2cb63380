"""The logs of the parts: what a line holds, the bounds and modes of the files, and reading them over rotations."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from contextvars import Context, copy_context
from pathlib import Path

import pytest

from heliograph.base.errors import InvalidConfigError, NotFoundError
from heliograph.base.guard.line_file import LineFile
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.logs import setup
from heliograph.cluster.logs.config import LogsConfig
from heliograph.cluster.logs.files import read_log
from heliograph.cluster.logs.gathering import ClusterLogs
from heliograph.cluster.logs.lines import LogLine, encoded, merged, parsed
from heliograph.cluster.logs.setup import PartLog, start_log

LEDGER = logging.getLogger("heliograph.actors.ledger.test")


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger(setup.OURS)
    handlers, level = list(root.handlers), ours.level
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)


def started(directory: Path, part: str = "bookie-1", **settings: object) -> PartLog:
    return start_log(part, LogsConfig(directory=directory, **settings))  # type: ignore[arg-type]


def lines_of(directory: Path, part: str = "bookie-1") -> list[LogLine]:
    return list(parsed(read_log(directory, part, None, 1 << 20).data, part))


def test_a_line_has_its_time_level_part_module_and_ids(tmp_path: Path) -> None:
    log = started(tmp_path / "logs")
    LEDGER.info("ledger %d is closed", 7, extra={"ledger": 7, "topic": "persistent://a/b/t"})
    log.close()
    (text,) = (tmp_path / "logs" / "bookie-1.log").read_text().splitlines()
    time, rest = text.split(" ", 1)
    assert time.endswith("Z")
    assert len(time) == len("2026-01-01T05:15:00.000Z")
    # The message names the ledger already.
    assert rest == "INFO bookie-1 heliograph.actors.ledger.test: ledger 7 is closed [topic=persistent://a/b/t]"


def test_parts_of_one_process_have_the_lines_of_their_own_tasks(tmp_path: Path) -> None:
    names = ("bookie-1", "broker-1", "")
    contexts: dict[str, Context] = {}
    logs = []
    for name in names:
        context = contexts[name] = copy_context()
        context.run(setup.shared_part.set, name)
        logs.append(context.run(started, tmp_path, name or "shared-process"))
        assert context.run(started, tmp_path, name or "shared-process") is logs[-1], "made again, it has its log"
    for name, context in contexts.items():
        context.run(LEDGER.warning, f"of {name or 'none'}")
    setup.stop_log("bookie-1")
    for log in logs:
        log.close()
    for name in names:
        assert [line.message for line in lines_of(tmp_path, name or "shared-process")] == [f"of {name or 'none'}"]
    assert logs[0] not in logging.getLogger().handlers


def test_files_are_closed_to_others(tmp_path: Path) -> None:
    log = started(tmp_path / "home" / "logs")
    LEDGER.warning("x")
    log.close()
    assert stat.S_IMODE((tmp_path / "home" / "logs").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "home" / "logs" / "bookie-1.log").stat().st_mode) == 0o600


def test_json_lines_have_the_ids_as_fields(tmp_path: Path) -> None:
    log = started(tmp_path, format="json")
    LEDGER.warning("two\nlines", extra={"ledger": 7})
    log.close()
    (text,) = (tmp_path / "bookie-1.log").read_text().splitlines()
    fields = json.loads(text)
    assert (fields["level"], fields["part"], fields["message"], fields["ledger"]) == (
        "WARNING", "bookie-1", "two\nlines", "7",
    )  # fmt: skip
    assert lines_of(tmp_path)[0].ids == (("ledger", "7"),)


def test_nothing_that_is_logged_can_pass_for_another_line(tmp_path: Path) -> None:
    log = started(tmp_path)
    LEDGER.warning("%s", "first\n2026-01-01T05:15:00.000Z ERROR broker-1 m: forged\x1b[2J")
    log.close()
    (line,) = lines_of(tmp_path)
    assert line.message == "first\n2026-01-01T05:15:00.000Z ERROR broker-1 m: forged\\x1b[2J"


def test_a_traceback_belongs_to_its_line(tmp_path: Path) -> None:
    log = started(tmp_path)
    try:
        raise OSError("disk")
    except OSError:
        LEDGER.exception("failed")
    LEDGER.warning("next")
    log.close()
    failed, after = lines_of(tmp_path)
    assert failed.message.startswith("failed\nTraceback")
    assert failed.message.endswith("OSError: disk")
    assert after.message == "next"


def test_the_last_words_of_a_process_are_on_disk_at_once(tmp_path: Path) -> None:
    log = started(tmp_path)
    LEDGER.critical("a promise is broken")
    assert [line.message for line in lines_of(tmp_path)] == ["a promise is broken"]
    log.close()


def test_warnings_still_go_to_the_log_of_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers[:] = []
    log = started(tmp_path)
    LEDGER.info("quiet")
    LEDGER.warning("loud")
    log.close()
    assert capsys.readouterr().err == "loud\n"


def test_a_directory_that_cannot_be_written_stops_no_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    log = started(tmp_path / "file" / "logs")
    LEDGER.error("lost")
    log.close()
    assert "cannot be written" in capsys.readouterr().err


def test_lines_that_are_lost_are_counted(tmp_path: Path) -> None:
    config = LogsConfig(directory=tmp_path, lines_max=2)
    log = PartLog("bookie-1", config)  # its thread does not run yet
    for number in range(5):
        log.handle(LEDGER.makeRecord("heliograph.x", logging.INFO, "f", 1, "line %d", (number,), None))
    log.start()
    log.flush()
    log.handle(LEDGER.makeRecord("heliograph.x", logging.INFO, "f", 1, "last", (), None))
    log.close()
    assert [line.message for line in lines_of(tmp_path)] == [
        "line 0", "line 1", "3 lines before this one are lost: the disk took none, or they came too fast", "last",
    ]  # fmt: skip


def rotating(path: Path, on_lost: list[int]) -> LineFile:
    return LineFile(
        path, bytes_max=100, files_max=3, lines_max=10, on_lost=on_lost.append, on_failure=lambda error: None
    )


def line(number: int) -> bytes:
    return encoded(LogLine(number, "INFO", "p", "m", f"line {number}"), "text")


def test_reading_goes_on_over_rotations(tmp_path: Path) -> None:
    file = rotating(tmp_path / "p.log", [])
    file.start()

    def write(*numbers: int) -> None:
        for number in numbers:
            file.put(line(number))
            assert file.flush(10)

    write(1)
    first = read_log(tmp_path, "p", None, 1_000)
    write(2, 3, 4)
    second = read_log(tmp_path, "p", first.position, 1_000)
    third = read_log(tmp_path, "p", second.position, 1_000)
    write(5)
    fourth = read_log(tmp_path, "p", third.position, 1_000)
    file.stop()
    assert [[each.time_ms for each in parsed(chunk.data, "p")] for chunk in (first, second, third, fourth)] == [
        [1], [2, 3, 4], [], [5],
    ]  # fmt: skip


def test_a_line_behind_one_that_was_cut_off_begins_a_line(tmp_path: Path) -> None:
    """A crash or a full disk left a part of a line; the next one was lost with it."""
    path = tmp_path / "p.log"
    path.write_bytes(line(2)[:30])
    file = rotating(path, [])
    file.start()
    file.put(line(3))
    file.stop()
    assert path.read_bytes() == b"\n".join([line(2)[:30], line(3)]) + b"\n"


def test_a_chunk_is_bounded_and_holds_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "p.log").write_bytes(b"\n".join(line(number) for number in range(1, 6)) + b"\n")
    size = len(line(1)) + 1
    end = read_log(tmp_path, "p", None, 2 * size + 3)
    assert [each.time_ms for each in parsed(end.data, "p")] == [4, 5]
    assert end.position is not None
    begin = read_log(tmp_path, "p", type(end.position)(end.position.inode, 0), 2 * size + 3)
    assert [each.time_ms for each in parsed(begin.data, "p")] == [1, 2]
    assert begin.position is not None
    assert begin.position.offset == 2 * size


def test_ids_are_taken_from_what_a_message_names() -> None:
    text = b"2026-01-01T05:15:00.000Z INFO broker-1 m: persistent://a/b/t-1: ledger 12 failed: x"
    (found,) = parsed(text, "p")
    assert found.as_fields() | {"ledger": "12", "topic": "persistent://a/b/t-1"} == found.as_fields()
    assert found.as_text().encode() == text


def test_logs_are_merged_by_time_and_filtered(tmp_path: Path) -> None:
    a = [LogLine(1, "INFO", "a", "m", "1"), LogLine(4, "ERROR", "a", "m", "4")]
    b = [LogLine(3, "WARNING", "b", "m", "3"), LogLine(2, "ERROR", "b", "m", "2"), a[1]]
    assert [each.message for each in merged([*a, *b])] == ["1", "2", "3", "4"]
    assert [each.message for each in merged([*a, *b], since_ms=3, level="ERROR")] == ["4"]


def test_the_logs_of_a_home_are_read_without_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for part, number in (("bookie-1", 2), ("broker-1", 1)):
        (tmp_path / "logs" / f"{part}.log").write_bytes(line(number) + b"\n")
    found = ClusterLogs(tmp_path, "n")
    assert [each.time_ms for each in found.ends(since_ms=0, level="INFO")] == [1, 2]
    with (tmp_path / "logs" / "bookie-1.log").open("ab") as file:
        file.write(line(3) + b"\n")
    assert [each.time_ms for each in found.further(level="INFO")] == [3]
    with pytest.raises(NotFoundError, match="bookie-9 has no log here: there are logs of bookie-1, broker-1"):
        ClusterLogs(tmp_path, "n", ["bookie-9"])


def test_settings_of_logs_are_checked(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path, logs={"format": "json"}).logs_config()
    assert (config.format, config.directory) == ("json", tmp_path / "logs")
    with pytest.raises(InvalidConfigError, match=r"logs\.level"):
        ClusterConfig(home=tmp_path, logs={"level": "loud"})


def test_a_part_may_have_a_second_log_where_ray_lists_it(tmp_path: Path) -> None:
    own = started(tmp_path / "logs")
    shown = started(tmp_path / "ray" / "heliograph", files_max=2)
    assert started(tmp_path / "ray" / "heliograph") is shown, "made again, it has its log"
    LEDGER.info("it is open")
    setup.stop_log("bookie-1")
    for directory in (tmp_path / "logs", tmp_path / "ray" / "heliograph"):
        (line,) = lines_of(directory)
        assert (line.part, line.level, line.message) == ("bookie-1", "INFO", "it is open")
    assert own not in logging.getLogger().handlers
    assert shown not in logging.getLogger().handlers

"""Pauses before the starts of a part that ends again and again."""

from pathlib import Path

from heliograph.cluster.logs.start_history import LASTING_MS, PAUSE_MS_MAX, STARTS_FREE, StartHistory, Starts, pause_ms


def test_pauses_grow_to_a_bound() -> None:
    pauses = [pause_ms(count) for count in range(1, 64)]
    assert pauses[:STARTS_FREE] == [0] * STARTS_FREE
    assert pauses[STARTS_FREE : STARTS_FREE + 3] == [1_000, 2_000, 4_000]
    assert pauses[-1] == PAUSE_MS_MAX
    assert pauses == sorted(pauses)


def test_a_start_that_lasted_ends_the_row_and_so_does_a_clock_that_went_back() -> None:
    row = Starts().begun(1_000).begun(2_000)
    assert len(row.times_ms) == 2
    assert len(row.begun(2_000 + 2 * LASTING_MS).times_ms) == 1
    assert not row.has_lasted(2_000 + LASTING_MS - 1)
    assert row.has_lasted(2_000 + LASTING_MS)
    assert len(row.begun(500).times_ms) == 1


def test_the_reason_is_kept_until_the_part_serves(tmp_path: Path) -> None:
    history = StartHistory(tmp_path, "bookie-1")
    history.begin(1_000)
    history.failed("ResourceError: port 3181 is taken")
    assert StartHistory(tmp_path, "bookie-1").starts.failure == "ResourceError: port 3181 is taken"
    again = StartHistory(tmp_path, "bookie-1")
    again.begin(2_000)
    again.served()
    assert StartHistory(tmp_path, "bookie-1").starts == Starts((1_000, 2_000))
    again.stopped()
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "bookie-1.starts").write_text("{")
    history = StartHistory(tmp_path, "bookie-1")
    assert history.begin(1_000) == 0
    assert history.starts.times_ms == (1_000,)

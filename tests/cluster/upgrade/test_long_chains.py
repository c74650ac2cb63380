"""A topic whose chain is in pieces, as the previous release sees it: refused, and none of its ledgers is an orphan."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.actors.broker.records.topic_chain import fold
from heliograph.metadata import codec
from heliograph.metadata.model import BrokerRegistration, LedgerInfo, TopicRecord
from tests.previous_release import unpack_previous

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

LEDGERS = 3_000
OLD = """
import sys
from pathlib import Path
from heliograph.actors.broker.balance.orphan_sweep import numbers_in
from heliograph.metadata import codec
from heliograph.metadata.model import BrokerRegistration, TopicRecord

folder = Path(sys.argv[1])
print(codec.decode(BrokerRegistration, (folder / "broker").read_bytes()).broker_id)
short = codec.decode(TopicRecord, (folder / "short").read_bytes())
print(len(short.ledgers))
try:
    codec.decode(TopicRecord, (folder / "long").read_bytes())
except Exception as error:
    print(type(error).__name__, error)
print(len({n for file in folder.iterdir() for n in numbers_in(file.read_bytes()) if n >= 10**9}))
"""


def test_the_previous_release_refuses_a_chain_in_pieces_and_keeps_its_ledgers(tmp_path: Path) -> None:
    code, folder = unpack_previous(tmp_path / "code"), tmp_path / "nodes"
    folder.mkdir()
    rows = tuple(LedgerInfo(10**9 + number, 1, 1, 1) for number in range(LEDGERS))
    short = TopicRecord("t", rows[:1_000])
    long, created = fold(replace(short, ledgers=rows))
    registration = BrokerRegistration("b7", "", "", reads_records=codec.PIECES_VERSION)
    values = {"short": short, "long": long, "broker": registration, **{f"piece-{n}": one for n, one in created.items()}}
    for name, record in values.items():
        (folder / name).write_bytes(codec.encode(record))
    done = subprocess.run(
        [sys.executable, "-c", OLD, str(folder)],
        env={**os.environ, "PYTHONPATH": str(code)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    broker, count, refusal, numbers = done.stdout.splitlines()
    assert (broker, count) == ("b7", "1000")
    assert refusal == "RecordError TopicRecord record has format v2, this program reads v1: upgrade it"
    assert int(numbers) == LEDGERS  # I14: its orphan sweep reads all nodes below the topic

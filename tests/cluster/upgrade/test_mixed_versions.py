"""The previous release and the present one in one cluster without Ray: a process for each part and each client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import START_SECONDS
from tests.previous_release import NEXT, PREVIOUS, TOO_FAR, copy_present, unpack_previous

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PART = Path(__file__).with_name("part.py")
COUNT = 40  # messages of a round
END_SECONDS = float(START_SECONDS)

Code = Path


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Code:
    return unpack_previous(tmp_path_factory.mktemp("previous") / "code")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The present code, as the minor version after the previous release's."""
    return copy_present(tmp_path_factory.mktemp("present") / "code", NEXT)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The present code, as the minor version after the next."""
    return copy_present(tmp_path_factory.mktemp("newer") / "code", TOO_FAR)


def command(code: Code, *arguments: str | Path) -> tuple[list[str], dict[str, str]]:
    environment = {**os.environ, "PYTHONPATH": str(code)}
    return [sys.executable, str(PART), str(code), *map(str, arguments)], environment


def done(code: Code, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a round of a client, or what ends by itself, to its end."""
    line, environment = command(code, *arguments)
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=END_SECONDS, check=False)


@contextmanager
def part(code: Code, role: str, *arguments: str | Path, is_killed: bool = False) -> Iterator[str]:
    """A part, by its address; it stops in good order, or is killed."""
    line, environment = command(code, role, *arguments)
    process = subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Timer(END_SECONDS, process.kill)
    late.start()
    try:
        address = process.stdout.readline().strip()
        assert address, f"{role} did not start: exit code {process.wait()}"
        yield address
    finally:
        if is_killed:
            process.kill()
        process.stdin.close()
        process.wait(END_SECONDS)
        late.cancel()
        process.stdout.close()


class Disks:
    """The data of one cluster, and rounds of clients on it with code of one release or another for each part."""

    def __init__(self, directory: Path, copies: int = 2) -> None:
        self._directory = directory
        self._copies = copies
        self._sent = 0

    @contextmanager
    def served(self, metadata: Code, bookies: Code, count: int) -> Iterator[str]:
        """Metadata by its URL, and some bookies."""
        with part(metadata, "metadata", self._directory / "metadata", str(self._copies)) as store:
            url = f"embedded://{store}"
            with part(bookies, "bookies", self._directory, url, str(count)):
                yield url

    def play(
        self, *, metadata: Code, bookies: Code, broker: Code, client: Code, count: int = 0, is_killed: bool = False
    ) -> None:
        """Let a client have its round.

        Args:
            count: of bookies, 0: as many as there are copies.
            is_killed: the broker leaves its ledgers open.
        """
        with (
            self.served(metadata, bookies, count or self._copies) as url,
            part(broker, "broker", url, is_killed=is_killed) as address,
        ):
            ended = done(client, "round", address, str(self._sent), str(COUNT))
            assert ended.returncode == 0, ended.stderr[-3000:]
        found = json.loads(ended.stdout)
        first, self._sent = self._sent, self._sent + COUNT
        odd = [number for number in range(first) if number % 2]
        assert found["stored"] == list(range(self._sent)), "each message once, in order"
        assert found["received"] == [*odd, *range(first, self._sent)], "what was not acknowledged, and what is new"


def test_parts_of_both_releases_serve_together(old: Code, new: Code, tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    disks.play(metadata=new, bookies=old, broker=new, client=old)
    disks.play(metadata=old, bookies=new, broker=old, client=new)


def test_the_data_of_each_release_is_read_by_the_other(old: Code, new: Code, tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    for code in (old, new, old):  # and back
        disks.play(metadata=code, bookies=code, broker=code, client=code)


def test_ledgers_with_a_vacancy_are_read_and_recovered_by_the_previous_release(
    old: Code, new: Code, tmp_path: Path
) -> None:  # I20
    """One of three bookies is lost during the upgrade, and is back before the way back."""
    disks = Disks(tmp_path, copies=3)
    disks.play(metadata=old, bookies=old, broker=old, client=old)
    disks.play(metadata=new, bookies=new, broker=new, client=old, count=2, is_killed=True)
    with disks.served(new, new, 2) as url:
        assert int(done(new, "vacancies", url).stdout) > 0
        with part(old, "broker", url) as address:  # it makes no ledger of two copies, and says so
            ended = done(old, "round", address, "0", "1")
    assert ended.returncode != 0
    assert "an ensemble of 3 bookies is required" in ended.stderr
    disks.play(metadata=new, bookies=new, broker=old, client=new, is_killed=True)  # it recovers them
    disks.play(metadata=old, bookies=old, broker=old, client=old)
    disks.play(metadata=new, bookies=new, broker=new, client=new)


def test_releases_too_far_apart_are_told_both_versions(old: Code, newer: Code, tmp_path: Path) -> None:
    with part(old, "metadata", tmp_path / "metadata", "2") as address:
        ended = done(newer, "bookies", tmp_path, f"embedded://{address}", "2")
    assert ended.returncode == 1
    assert f"VersionMismatchError: the metadata store at {address} has version {PREVIOUS}" in ended.stderr

"""The previous release and the present one in one cluster without Ray: a process for each part and each client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


@contextmanager
def part(code: Code, role: str, *arguments: str | Path) -> Iterator[str]:
    """A part, by its address."""
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
        process.stdin.close()
        process.wait(END_SECONDS)
        late.cancel()
        process.stdout.close()


class Disks:
    """The data of one cluster, and rounds of clients on it with code of one release or another for each part."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sent = 0

    def play(self, *, metadata: Code, bookies: Code, broker: Code, client: Code) -> None:
        with ExitStack() as stack:
            store = stack.enter_context(part(metadata, "metadata", self._directory / "metadata"))
            url = f"embedded://{store}"
            stack.enter_context(part(bookies, "bookies", self._directory, url))
            address = stack.enter_context(part(broker, "broker", url))
            line, environment = command(client, "round", address, str(self._sent), str(COUNT))
            done = subprocess.run(
                line, env=environment, capture_output=True, text=True, timeout=END_SECONDS, check=False
            )
            assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout)
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


def test_releases_too_far_apart_are_told_both_versions(old: Code, newer: Code, tmp_path: Path) -> None:
    with part(old, "metadata", tmp_path / "metadata") as address:
        line, environment = command(newer, "bookies", tmp_path, f"embedded://{address}")
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=END_SECONDS, check=False)
    assert done.returncode == 1
    assert f"VersionMismatchError: the metadata store at {address} has version {PREVIOUS}" in done.stderr

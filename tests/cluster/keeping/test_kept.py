"""Processes of parts outlive their actors, and end with them where that is meant. The parts are stand-ins."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.exceptions

from heliograph.base.errors import NotFoundError, ServiceNotReadyError
from heliograph.client import discovery
from heliograph.cluster.keeping.keeper import kept, made_of
from heliograph.cluster.removal import end
from tests.cluster.support.live_cluster import LiveCluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SECONDS = 240.0


class Counter:
    """A part that counts its calls."""

    def __init__(self, notes: Path) -> None:
        self._count = 0
        with notes.open("a") as file:
            file.write("made\n")

    @staticmethod
    async def after_end(notes: Path) -> None:
        """Note how often this part was made before."""
        times = notes.read_text().count("made") if notes.exists() else 0
        notes.with_name("ended").write_text(str(times))

    async def count(self, by: int = 1) -> int:
        self._count += by
        return self._count

    async def refuse(self) -> None:
        raise NotFoundError("nothing is there")

    async def pid(self) -> int:
        return os.getpid()

    async def stop(self) -> None:
        return


class Kept:
    """The actor of a counter, and the pid of each."""

    def __init__(self, namespace: str, notes: Path) -> None:
        self.namespace = namespace
        self.notes = notes
        self.handle = self.make()

    def make(self) -> Any:
        actor_class = ray.remote(kept(Counter, "counter", self.namespace))
        options: dict[str, Any] = {"lifetime": "detached", "max_restarts": -1, "num_cpus": 0}
        made = actor_class.options(name="counter", namespace=self.namespace, **options)
        return made.remote(made_of(Counter, (self.notes,)))

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method until there is an actor that passes the call on."""
        found: list[Any] = []

        def has_answered() -> bool:
            with contextlib.suppress(ray.exceptions.RayActorError, ServiceNotReadyError):  # both say: try again
                found.append(ray.get(getattr(self.handle, method).remote(*arguments), timeout=SECONDS))
            return bool(found)

        wait_for(has_answered, SECONDS, "no answer")
        return found[0]


@pytest.fixture
def counter(cluster: LiveCluster, tmp_path: Path) -> Iterator[Kept]:
    made = Kept(f"kept-{uuid.uuid4().hex[:8]}", tmp_path / "notes")
    try:
        yield made
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            end(made.handle)


def actor_of(process: int) -> int:
    """Return the worker of Ray that keeps a counter, in the session of its process."""
    session = os.getsid(process)
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            is_there = entry.name.isdigit() and os.getsid(int(entry.name)) == session
            if is_there and (entry / "cmdline").read_text().startswith("ray::Counter"):
                return int(entry.name)
    raise AssertionError("no worker")


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_the_next_actor_finds_the_process_of_one_that_was_killed(counter: Kept) -> None:
    process = counter.call("pid")
    assert counter.call("count", 2) == 2
    for expected in (3, 4):
        os.kill(actor_of(process), signal.SIGKILL)
        assert counter.call("pid") == process
        assert counter.call("count") == expected
    assert counter.notes.read_text() == "made\n"


def test_errors_pass_as_they_are(counter: Kept) -> None:
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        counter.call("refuse")
    assert isinstance(caught.value.cause, NotFoundError)


def test_linux_ends_workers_of_ray_before_a_part(counter: Kept) -> None:
    process = counter.call("pid")
    score = int(Path(f"/proc/{process}/oom_score_adj").read_text())
    assert score < int(Path(f"/proc/{actor_of(process)}/oom_score_adj").read_text())


def test_a_process_that_ends_is_started_again(counter: Kept) -> None:
    process = counter.call("pid")
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: bool(counter.call("pid") != process), SECONDS, "it is not started again")
    assert counter.call("count") == 1
    assert counter.notes.read_text() == "made\nmade\n"
    assert counter.notes.with_name("ended").read_text() == "1", "others stand in before the part is made again"


def test_a_process_ends_with_an_actor_that_was_removed(counter: Kept) -> None:
    process = counter.call("pid")
    ray.kill(counter.handle, no_restart=True)  # nobody tells the process
    wait_for(lambda: not is_alive(process), SECONDS, "the process outlives its part")


def test_an_actor_that_was_made_again_has_a_new_process(counter: Kept) -> None:
    process = counter.call("pid")
    ray.kill(counter.handle, no_restart=True)
    wait_for(lambda: not is_known(counter), SECONDS, "Ray knows it still")
    counter.handle = counter.make()
    assert counter.call("pid") != process
    assert counter.call("count") == 1


def is_known(counter: Kept) -> bool:
    try:
        ray.get_actor("counter", counter.namespace)
    except ValueError:
        return False
    return True


def test_the_actor_moves_the_process_when_it_is_told_to_end(counter: Kept) -> None:
    process = counter.call("pid")
    ray.get(counter.handle.end_process.remote())
    ray.kill(counter.handle, no_restart=False)
    wait_for(lambda: not is_alive(process), 60, "the process goes on")
    assert counter.call("pid") != process
    assert discovery.is_attached()

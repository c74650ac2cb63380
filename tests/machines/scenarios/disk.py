"""Disks of bookies: one that is lost, and all of them full."""

from __future__ import annotations

import itertools
import time

import heliograph
from heliograph.base.errors import HeliographError, StorageFullError
from tests.machines import disks
from tests.machines.network import wait_for
from tests.machines.scenarios.stage import SETTLE_SECONDS, Stage

SEND_MS = 10_000
# By the settings of chaos.py a bookie is read-only below a reserve of 28 MiB, and takes adds of recovery down to 8 MiB.
FULL_BYTES, OVERRUN_BYTES = 20 << 20, 1 << 20  # free space

_numbers = itertools.count()


def disk_lost(stage: Stage) -> None:
    """A bookie's disk is lost; it serves on an empty one under its name once it is told to."""
    number = stage.chance.randrange(1, len(stage.cluster.machines))
    name, machine = f"bookie-{number + 1}", stage.cluster.machines[number]
    with stage.load() as load:
        stage.say(f"the disk of {name} is lost")
        disks.wipe(stage.cluster.data / name)
        machine.kill("part::bookie-")
        wait_for(lambda: _is_refused(stage, name), f"{name} refuses its empty disk", SETTLE_SECONDS)
        load.wait_for_more()
        stage.cluster.helio("bookies", "replace", name, "--empty-disk")
        stage.settle()


def disk_full(stage: Stage) -> None:
    """The disks of all bookies are full: publishing is refused with the reason, and goes on when there is room."""
    error = _published_around(stage, FULL_BYTES, StorageFullError)
    assert "bookie-" in str(error), f"the refusal names no bookie: {error}"
    assert "%" in str(error), f"the refusal has no used shares: {error}"


def disk_overrun(stage: Stage) -> None:
    """Another program fills the disks of all bookies, with their reserve; publishing goes on when it is gone."""
    _published_around(stage, OVERRUN_BYTES, HeliographError)


def _published_around(stage: Stage, left: int, refusal: type[HeliographError]) -> HeliographError:
    """Leave so many bytes free on all disks until a publish is refused in this way, and return why it was."""
    places = [stage.cluster.data / f"bookie-{number + 1}" for number in range(len(stage.cluster.machines))]
    topic = f"full-{stage.chance.randrange(1 << 32)}"
    confirmed: list[bytes] = []
    refusals: list[HeliographError] = []

    def is_refused() -> bool:
        if (error := _send(producer, confirmed)) is not None:
            refusals.append(error)
        return isinstance(error, refusal)

    with (
        heliograph.connect(stage.cluster.service_url) as client,
        client.producer(topic, send_timeout_ms=SEND_MS) as producer,
    ):
        _send(producer, confirmed)
        stage.say(f"all disks are filled; {left >> 20} MiB are left")
        try:
            for place in places:
                disks.fill(place, left)
            wait_for(is_refused, "a publish is refused", SETTLE_SECONDS)
        finally:
            for place in places:
                disks.make_room(place)
        stage.say(f"refused: {refusals[-1]}")
        has_room = time.monotonic()
        wait_for(lambda: not _send(producer, confirmed), "publishing goes on", SETTLE_SECONDS)
        stage.note_pause(time.monotonic() - has_room, "after there was room")
        _check_stored(client, topic, confirmed)
    stage.settle()
    return refusals[-1]


def _check_stored(client: heliograph.Client, topic: str, confirmed: list[bytes]) -> None:
    """Read up to the last confirmed number. A number that was refused may be there, too: nobody sent it again."""
    with client.reader(topic, "earliest") as reader:
        stored = [reader.receive(60).value]
        while stored[-1] != confirmed[-1]:
            stored.append(reader.receive(60).value)
    assert [value for value in stored if value in set(confirmed)] == confirmed  # I1, I12


def _send(producer: heliograph.Producer, confirmed: list[bytes]) -> HeliographError | None:
    """Publish the next number; return why it was refused. A refused number is not sent again."""
    value = b"%d" % next(_numbers)
    try:
        producer.send(value)
    except HeliographError as error:
        return error
    confirmed.append(value)
    return None


def _is_refused(stage: Stage, name: str) -> bool:
    notes = {actor["name"]: actor["note"] for actor in stage.cluster.status()["actors"]}
    return "CookieMismatchError" in notes.get(name, "")

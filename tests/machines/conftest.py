"""Machines that tests share: each test begins on a cluster that was checked, and on new ones if it is not healthy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.machines.chaos import machines
from tests.machines.cluster import MachineCluster
from tests.machines.scenarios.stage import Stage
from tests.patience import patience

CHECK_SECONDS = 90.0  # for what the test before has left to end


class KeptMachines:
    """Machines of which one set at a time is there.

    Args:
        make: runs a cluster on new machines, with its files in a directory.
        directory: returns a new one.
    """

    def __init__(
        self, make: Callable[[Path], AbstractContextManager[MachineCluster]], directory: Callable[[], Path]
    ) -> None:
        self._make = make
        self._directory = directory
        self._stack = ExitStack()
        self._made: MachineCluster | None = None

    def checked(self) -> MachineCluster:
        """Return a cluster of which everything serves, with all copies: the one that is there, or a new one."""
        if self._made is not None:
            try:
                Stage(self._made, random.Random(), print).settle(seconds=CHECK_SECONDS)
            except AssertionError as error:
                print(f"on new machines, because the test before left these as they are: {error}")
                self.close()
        if self._made is None:
            self._made = self._stack.enter_context(self._make(self._directory()))
        return self._made

    def close(self) -> None:
        """End the machines."""
        self._made = None
        self._stack.close()


@pytest.fixture(scope="session")
def kept_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptMachines]:
    with patience():
        kept = KeptMachines(machines, lambda: Path(tmp_path_factory.mktemp("m")))
        try:
            yield kept
        finally:
            kept.close()


@pytest.fixture
def machine_set(kept_machines: KeptMachines) -> MachineCluster:
    return kept_machines.checked()

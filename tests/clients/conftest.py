"""One running Heliograph for all tests of foreign clients, and the record of what they can do.

``FULL=1`` in the environment runs the tests that are marked ``full``, too, ``RECORD=1`` writes the record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.support.report import ClientMatrix
from tests.clients.support.secured import SecuredStack, running_secured_stack
from tests.clients.support.stack import ClientsStack, running_stack
from tests.patience import patience


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    with patience():
        yield


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientsStack]:
    """Two brokers, three bookies and a gateway. A test leaves them as many as it found, and uses its own topics."""
    with running_stack(tmp_path_factory.mktemp("clients")) as running:
        yield running


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredStack]:
    """A broker and a gateway that ask who their clients are. A test leaves the grants as it found them."""
    with running_secured_stack(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config) -> Iterator[ClientMatrix]:
    """The notes of this run."""
    found = ClientMatrix()
    yield found
    if _is_set("RECORD"):
        found.save(is_complete=_is_set("FULL") and _selects_all(pytestconfig))


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def _selects_all(config: pytest.Config) -> bool:
    """Return whether this run is of all tests of the folder."""
    names = {Path(config.invocation_params.dir, argument).resolve() for argument in config.args}
    narrowed = config.option.keyword or config.option.markexpr or config.option.deselect
    return Path(__file__).parent.resolve() in names and not narrowed

"""The fixtures of the tests of the Python client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.python.user import User
from tests.clients.support.stack import ClientsStack


@pytest.fixture
def user(stack: ClientsStack) -> Iterator[User]:
    with stack.cluster.client() as client:
        yield User(client, stack)

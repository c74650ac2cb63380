"""The tools of one version, and a session of pulsar-admin."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.admin.session import AdminSession, admin_session
from tests.clients.support.maven import JavaProject, build
from tests.clients.support.secured import SecuredStack
from tests.clients.support.stack import ClientsStack

VERSION = "4.0.8"


@pytest.fixture(scope="session")
def tools() -> JavaProject:
    return build(Path(__file__).parent, pulsar_version=VERSION)


@pytest.fixture(scope="session")
def admin(tools: JavaProject, stack: ClientsStack) -> Iterator[AdminSession]:
    with admin_session(tools.command("heliograph.clients.AdminSession", stack.web_url, stack.service_url)) as session:
        yield session


@pytest.fixture(scope="session")
def guarded(tools: JavaProject, secured: SecuredStack) -> Iterator[AdminSession]:
    """A session at the gateway that asks who its callers are; each command shows its own token, or none."""
    with admin_session(
        tools.command("heliograph.clients.AdminSession", secured.web_url, secured.service_url)
    ) as session:
        yield session


@pytest.fixture
def namespace(admin: AdminSession) -> str:
    """A namespace that no other test uses."""
    name = f"public/admin-{uuid.uuid4().hex[:8]}"
    admin("namespaces", "create", name)
    return name


@pytest.fixture
def topic(admin: AdminSession) -> str:
    """A topic that no other test uses."""
    name = f"persistent://public/default/admin-{uuid.uuid4().hex[:8]}"
    admin("topics", "create", name)
    return name

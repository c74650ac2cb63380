"""pulsar-admin at a gateway that asks who its callers are: each command shows a token, or none."""

from __future__ import annotations

from tests.clients.admin.conftest import VERSION
from tests.clients.admin.session import AdminSession
from tests.clients.admin.test_commands import TOOL, lines
from tests.clients.support.report import ClientMatrix
from tests.clients.support.secured import OTHER_KEY, SUPERUSER, USER
from tests.unit.auth.keys import token

PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
NAMESPACE = "public/by-a-token"
CREATE = ("namespaces", "create", NAMESPACE)


def showing(shown: bytes) -> tuple[str, ...]:
    return ("--auth-plugin", PLUGIN, "--auth-params", f"token:{shown.decode()}")


def test_commands_are_run_for_who_may_do_them(guarded: AdminSession, matrix: ClientMatrix) -> None:
    with matrix.noting(TOOL, VERSION, "identity"):
        for stranger in ((), showing(token(SUPERUSER, OTHER_KEY)), showing(token(SUPERUSER, seconds=-60))):
            assert "401" in guarded.refused(*stranger, *CREATE)
        assert "403" in guarded.refused(*showing(token(USER)), *CREATE)
        superuser = showing(token(SUPERUSER))
        guarded(*superuser, *CREATE)
        assert NAMESPACE in lines(guarded(*superuser, "namespaces", "list", "public"))
        guarded(*superuser, "namespaces", "delete", NAMESPACE)

"""Administration through a broker's port for clients: a program needs no more than the address of a broker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import msgpack

from heliograph.base.errors import UnsupportedError
from heliograph.client.admin.repeating import answered
from heliograph.client.aio.session import ClientSession, HandleOwner
from heliograph.client.aio.transport.connection import BrokerConnection
from heliograph.operations.admin import AdminOperations
from heliograph.operations.answer import unpacked
from heliograph.operations.table import AdminOperation
from heliograph.protocol import pulsar_pb2 as pb


class ClientAdmin(AdminOperations):
    """The administration that ``AsyncClient.admin`` is: the methods of ``TopicOperations``, and the other groups.

    A call acts in the role of the client. If a broker does not answer, it is repeated within the client's
    ``operation_timeout_ms``.

    Every method raises ConnectionLostError or RequestTimeoutError if no broker answered in time (what was asked may
    have been done), NotPermittedError if the client lacks the right to the operation, UnsupportedError if the broker is
    of a release without administration at this port, and otherwise what the operation raises.
    """

    def __init__(self, client: HandleOwner) -> None:
        self._client = client
        self.run_through(self._run)

    async def _run(self, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        session = await self._client.session()
        packed = msgpack.packb(operation.sparse(arguments))

        async def ask(connection: BrokerConnection) -> Any:
            if not connection.takes_admin_calls:
                raise UnsupportedError(
                    f"the broker at {connection.url} takes no administration at this port: it is of an older release"
                )

            def build(request_id: int) -> pb.BaseCommand:
                call = pb.CommandAdminCall(request_id=request_id, operation=operation.name, arguments=packed)
                return pb.BaseCommand(type=pb.BaseCommand.ADMIN_CALL, admin_call=call)

            answer = await connection.request(build)
            return unpacked(answer.answer, connection.url)

        return await answered(operation, session.lookup.any_connection, ask, _pauses(session))


def _pauses(session: ClientSession) -> Iterator[float]:
    """Return the pauses between attempts, of which none begins after the operation timeout, counted from this call."""
    end, backoff = session.loop.time() + session.options.operation_timeout_ms / 1000, session.backoff()
    return takewhile(lambda pause: session.loop.time() + pause < end, iter(backoff.pause, None))

"""The command ADMIN_CALL: an operation of ``heliograph/operations``, for clients with no other way to a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.auth.audit import READS
from heliograph.auth.principal import Principal
from heliograph.base.completion import run_to_completion
from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.operations.answer import packed_failure, packed_value, unpacked_arguments
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand

ARGUMENTS_BYTES_MAX = 1 << 20  # I15
CHANGES_OF_ROLE_MAX = 64  # that go on without their connection; further ones end with it # I15
INLINE_BYTES_MAX = 16 << 10  # of arguments that are unpacked on the event loop

RunOperation = Callable[[str, dict[str, Any], Principal, str], Coroutine[Any, Any, Any]]


class AdminCommands:
    """The administration through one connection, in the role of its client.

    Args:
        run: runs an operation by its name, with its arguments, the role and the address of the caller.
    """

    def __init__(self, connection: PulsarConnection, run: RunOperation) -> None:
        self.connection = connection
        self._run = run
        connection.handlers[BaseCommand.ADMIN_CALL] = lambda command, _: self._call(command.admin_call)

    async def _call(self, wanted: pb.CommandAdminCall) -> None:
        answer = await self._answer(wanted)
        most = self.connection.context.config.max_message_bytes
        if len(answer) > most:
            answer = packed_failure(
                BadRequestError(
                    f"the answer of {wanted.operation} has {len(answer)} bytes: ask for less of it, or the gateway",
                    field="operation",
                    limit=f"{most} bytes",
                )
            )
        told = pb.CommandAdminAnswer(request_id=wanted.request_id, answer=answer)
        self.connection.send(BaseCommand(type=BaseCommand.ADMIN_ANSWER, admin_answer=told))

    async def _answer(self, wanted: pb.CommandAdminCall) -> bytes:
        connection = self.connection
        try:
            arguments = await _unpacked(wanted.arguments)
            work = self._run(wanted.operation, arguments, connection.principal, connection.peer)
            value = await (work if wanted.operation in READS else self._to_the_end(work))
        except HeliographError as error:
            return packed_failure(error)
        return await asyncio.to_thread(packed_value, value)

    async def _to_the_end(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a change to its end, even if its connection is lost meanwhile, unless the role has too many under way."""
        running, role = self.connection.context.admin_changes, self.connection.principal.role
        if running[role] >= CHANGES_OF_ROLE_MAX:
            return await work
        running.add(role, 1)

        async def counted() -> Any:
            try:
                return await work
            finally:
                running.add(role, -1)

        return await run_to_completion(counted())


async def _unpacked(packed: bytes) -> dict[str, Any]:
    if len(packed) > ARGUMENTS_BYTES_MAX:
        raise BadRequestError(
            f"the arguments have {len(packed)} bytes", field="arguments", limit=f"{ARGUMENTS_BYTES_MAX} bytes"
        )
    if len(packed) > INLINE_BYTES_MAX:
        return await asyncio.to_thread(unpacked_arguments, packed, "arguments")
    return unpacked_arguments(packed, "arguments")

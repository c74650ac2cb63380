"""The commands of transactions, which this version does not offer: each is refused with the protocol's own response."""

from __future__ import annotations

from typing import Any

from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand

NO_TRANSACTIONS = "transactions are not offered by this version of Heliograph: build the client without them"
_TRANSACTIONS = {
    BaseCommand.NEW_TXN: "new_txn",
    BaseCommand.ADD_PARTITION_TO_TXN: "add_partition_to_txn",
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: "add_subscription_to_txn",
    BaseCommand.END_TXN: "end_txn",
}


class RefusedCommands:
    """The refusals of one connection. A client goes on without the feature."""

    def __init__(self, connection: PulsarConnection) -> None:
        self.connection = connection
        connection.handlers[BaseCommand.TC_CLIENT_CONNECT_REQUEST] = self._coordinator
        for kind in _TRANSACTIONS:
            connection.handlers[kind] = self._transaction

    def _coordinator(self, command: BaseCommand, section: memoryview | None) -> None:
        answer = pb.TransactionCoordinatorRefusal(
            request_id=command.tc_client_connect_request.request_id,
            error=pb.NOT_ALLOWED_ERROR,
            message=NO_TRANSACTIONS,
        )
        self.connection.send(
            BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_RESPONSE, tc_client_connect_response=answer)
        )

    def _transaction(self, command: BaseCommand, section: memoryview | None) -> None:
        name = _TRANSACTIONS[command.type]
        refusal = pb.TransactionRefusal(
            request_id=getattr(command, name).request_id,
            error=pb.NOT_ALLOWED_ERROR,
            message=NO_TRANSACTIONS,
        )
        fields: dict[str, Any] = {"type": f"{name}_response".upper(), f"{name}_response": refusal}
        self.connection.send(BaseCommand(**fields))

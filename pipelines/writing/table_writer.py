"""The writer that Ray tasks and Spark executors run to publish the rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from heliograph.base.errors import BadRequestError
from heliograph.client import discovery
from heliograph.client.access import connect, joined_address
from heliograph.client.certificates import tls_options
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.client.options import ENCRYPTED

SEND_ROWS_MAX = 1000  # rows that are sent and confirmed together (I15)


@dataclass(frozen=True)
class TableWriter:
    """A publisher of Arrow batches with a column ``value`` and optionally ``key`` (text). It can be pickled.

    The token, or user and password, of the process that makes it goes with it to the tasks that write. So do the paths
    of its files of TLS, which have to exist where the tasks run.
    """

    address: str
    topic: str
    identity: Identity = field(default_factory=Identity.from_environment, repr=False)
    tls: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, topic: str, address: str | None, namespace: str | None, credentials: IdentityOptions) -> TableWriter:
        """Return the writer of a topic, at an address or else at every live broker that Ray knows.

        Raises:
            ClusterNotFoundError: there is no cluster, or no broker answers.
            InvalidConfigError: the credentials contradict each other.
        """
        identity = Identity.of(credentials)
        named = None if address else discovery.namespace_or_noted(namespace)
        found = joined_address(discovery.service_urls(named)) if named else address
        assert found, "an address is given or found"
        return cls(found, topic, identity, tls=tls_options(named) if found.startswith(ENCRYPTED) else {})

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
        """Publish all rows, in order.

        Returns:
            The number of rows published; all of them are acknowledged.

        Raises:
            BadRequestError: a row has no value.
            HeliographError: publishing failed; rows before the failed one are published, later ones may be.
        """
        written = 0
        with (
            connect(self.address, **self.identity.options, **self.tls) as client,
            client.producer(self.topic) as producer,
        ):
            for batch in batches:
                for first in range(0, batch.num_rows, SEND_ROWS_MAX):
                    part = batch.slice(first, SEND_ROWS_MAX)
                    producer.send_many(_values(part), keys=_keys(part))
                    written += part.num_rows
        return written


def _values(batch: pa.RecordBatch | pa.Table) -> list[bytes]:
    column = batch.column("value")
    if column.null_count:
        raise BadRequestError("a row has no value, a message needs one", field="value")
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]


def _keys(batch: pa.RecordBatch | pa.Table) -> list[str | None] | None:
    if "key" not in batch.schema.names:
        return None
    return [key.decode() if isinstance(key, bytes) else key for key in batch.column("key").to_pylist()]

"""Runs the ledger cores over sockets, the metadata store and a clock. Nothing else is a client of bookies.

Bounds its queues and retries (I15), and acknowledges in entry order (I2).
"""

from heliograph.actors.ledger.driver.client import LedgerClient
from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.actors.ledger.driver.detached import DetachedReader
from heliograph.actors.ledger.driver.reader import LedgerReader
from heliograph.actors.ledger.driver.writer import LedgerWriter
from heliograph.actors.ledger.effects import LedgerEntry
from heliograph.actors.wire.messages import HEAD_BYTES

__all__ = [
    "HEAD_BYTES",
    "DetachedReader",
    "LedgerClient",
    "LedgerClientConfig",
    "LedgerEntry",
    "LedgerReader",
    "LedgerWriter",
]

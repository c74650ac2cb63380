"""The one shell around the ledger cores: sockets, metadata store, clock. Nothing else is a client of bookies."""

from actors.ledger.driver.client import LedgerClient
from actors.ledger.driver.config import LedgerClientConfig
from actors.ledger.driver.detached import DetachedReader
from actors.ledger.driver.reader import LedgerReader
from actors.ledger.driver.writer import LedgerWriter
from actors.ledger.effects import LedgerEntry

__all__ = ["DetachedReader", "LedgerClient", "LedgerClientConfig", "LedgerEntry", "LedgerReader", "LedgerWriter"]

"""Errors of ledgers and bookies, two branches of the tree whose root is ``heliograph.base.errors``.

LedgerError
|- LedgerFencedError        REFRESH  another client took over the ledger; outcome of pending adds is unknown
|- LedgerClosedError        STOP     the ledger (or this handle) is closed
|- NoSuchLedgerError        STOP     metadata does not know the ledger
|- NoSuchEntryError         STOP     beyond the last confirmed entry
|- NotEnoughBookiesError    RETRY    placement cannot fill an ensemble
|- QuorumLostError          RETRY    too few replicas answered; the outcome is unknown
|- TooManyAddsError         RETRY    the writer's queue is full; nothing was accepted
`- LedgerRecoveryError      RETRY    recovery could not decide; the ledger stays IN_RECOVERY
BookieError
|- BookieUnavailableError   RETRY    no connection, or no answer in time
|  `- BookieVersionError    RETRY    its version is too far from ours: names both
|- BookieReadOnlyError      REFRESH  choose another bookie
|- BookieStorageError       RETRY    the bookie's disk failed it; another replica may serve
|  `- DiskPoisonedError     STOP     a sync failed: the bookie writes nothing until a restart replays the journal
|- EntryDamagedError        RETRY    checksum or identity of an entry is wrong; ask another replica
|- CookieMismatchError      STOP     this disk is not the one that the cookie of the bookie names
|- JournalCorruptError      STOP     damage in the middle of a journal, not a torn tail
|- DirectoryLockedError     STOP     another process uses this directory
`- FrameError               STOP     a peer broke the wire format
"""

from __future__ import annotations

from typing_extensions import override

from heliograph.base.errors import Advice, HeliographError


class LedgerError(HeliographError):
    """Root of the ledger branch."""


class LedgerFencedError(LedgerError):
    """Another client fenced the ledger. Its recovery decides whether pending adds survive.

    A client of the broker is told to look the topic up again: it has another owner.
    """

    advice = Advice.REFRESH


class LedgerClosedError(LedgerError):
    """The ledger or its handle is closed."""


class NoSuchLedgerError(LedgerError):
    """Metadata does not know the ledger."""


class NoSuchEntryError(LedgerError):
    """The entry lies beyond the last confirmed one."""


class NotEnoughBookiesError(LedgerError):
    """There are too few usable bookies for the requested ensemble."""

    advice = Advice.RETRY


class QuorumLostError(LedgerError):
    """An operation failed because too few replicas answered; its outcome is unknown."""

    advice = Advice.RETRY


class TooManyAddsError(LedgerError):
    """The writer's queue is full; nothing was accepted. Add again once earlier adds are confirmed."""

    advice = Advice.RETRY


class LedgerRecoveryError(LedgerError):
    """A recovery got unknown answers and decided nothing; a later one starts over."""

    advice = Advice.RETRY


class BookieError(HeliographError):
    """Root of the bookie branch.

    Args:
        way_out: what an operator can do about a bookie that does not start, the loss of its data included. The last
            sentence of the message, unless other bookies refuse to start for the same reason.
    """

    def __init__(
        self, message: str = "", *, field: str | None = None, limit: str | None = None, way_out: str = ""
    ) -> None:
        super().__init__(message, field=field, limit=limit)
        self.what, self.way_out = message, way_out

    @override
    def __str__(self) -> str:
        return f"{self.what}. {self.way_out}" if self.way_out else self.what


class BookieUnavailableError(BookieError):
    """No connection to the bookie, or no answer in time; the outcome is unknown."""

    advice = Advice.RETRY


class BookieVersionError(BookieUnavailableError):
    """The versions of bookie and client are too far apart for one cluster; requests that were sent have no answer."""


class BookieReadOnlyError(BookieError):
    """The bookie takes no ordinary adds now."""

    advice = Advice.REFRESH


class BookieStorageError(BookieError):
    """The bookie's storage failed; nothing may be concluded about the entry."""

    advice = Advice.RETRY


class DiskPoisonedError(BookieStorageError):
    """A sync failed, so the contents of the disk are unknown; the bookie must exit and replay its journal."""

    advice = Advice.STOP


class EntryDamagedError(BookieError):
    """An entry's checksum, ledger id or entry id is wrong."""

    advice = Advice.RETRY


class CookieMismatchError(BookieError):
    """The directories do not belong to this bookie, or one of them was lost."""


class JournalCorruptError(BookieError):
    """A journal is damaged before its valid end."""


class DirectoryLockedError(BookieError):
    """Another process uses the directory."""


class FrameError(BookieError):
    """A frame breaks the wire format; the connection is closed."""

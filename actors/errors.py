"""Errors of ledgers and bookies, two branches of the tree whose root is ``heliograph.errors``.

LedgerError
|- LedgerFencedError        STOP     another client took the ledger over; outcome of pending adds is unknown
|- LedgerClosedError        STOP     the ledger (or this handle) is closed
|- NoSuchLedgerError        STOP     metadata does not know the ledger
|- LedgerAccessError        STOP     the password is not the ledger's; nothing was fenced or changed
|- NoSuchEntryError         STOP     beyond the last confirmed entry
|- NotEnoughBookiesError    RETRY    placement cannot fill an ensemble
|- QuorumLostError          RETRY    too few replicas answered; the outcome is unknown
|- TooManyAddsError         RETRY    the writer's waiting room is full; nothing was accepted
`- LedgerRecoveryError      RETRY    recovery could not decide; the ledger stays IN_RECOVERY
BookieError
|- BookieUnavailableError   RETRY    no connection, or no answer in time
|- BookieReadOnlyError      REFRESH  choose another bookie
|- BookieStorageError       RETRY    the bookie's disk failed it; another replica may serve
|  `- DiskPoisonedError     STOP     a sync failed: nothing is written any more until a restart replays
|- EntryDamagedError        RETRY    checksum or identity of an entry is wrong; ask another replica
|- CookieMismatchError      STOP     this disk is not the one that the bookie's identity names
|- JournalCorruptError      STOP     damage in the middle of a journal, not a torn tail
|- DirectoryLockedError     STOP     another process uses this directory
`- FrameError               STOP     a peer broke the wire format
"""

from __future__ import annotations

from heliograph.errors import Advice, HeliographError


class LedgerError(HeliographError):
    """Root of the ledger branch."""


class LedgerFencedError(LedgerError):
    """Another client fenced the ledger. Whether pending adds survive is for its recovery to decide."""


class LedgerClosedError(LedgerError):
    """The ledger, or the handle to it, is closed."""


class NoSuchLedgerError(LedgerError):
    """Metadata does not know the ledger."""


class LedgerAccessError(LedgerError):
    """The password is not the ledger's. Nothing was fenced or changed."""


class NoSuchEntryError(LedgerError):
    """The entry lies beyond the last confirmed one."""


class NotEnoughBookiesError(LedgerError):
    """There are too few usable bookies for the requested ensemble."""

    advice = Advice.RETRY


class QuorumLostError(LedgerError):
    """Too few replicas answered; the outcome is unknown."""

    advice = Advice.RETRY


class TooManyAddsError(LedgerError):
    """The writer's waiting room is full; nothing was accepted. Wait for room first."""

    advice = Advice.RETRY


class LedgerRecoveryError(LedgerError):
    """Recovery met unknown answers; nothing was decided, a later attempt starts over."""

    advice = Advice.RETRY


class BookieError(HeliographError):
    """Root of the bookie branch."""


class BookieUnavailableError(BookieError):
    """No connection to the bookie, or no answer in time; the outcome is unknown."""

    advice = Advice.RETRY


class BookieReadOnlyError(BookieError):
    """The bookie takes no ordinary adds now."""

    advice = Advice.REFRESH


class BookieStorageError(BookieError):
    """The bookie's storage failed; nothing may be concluded about the entry."""

    advice = Advice.RETRY


class DiskPoisonedError(BookieStorageError):
    """A sync failed, so what the disk holds is unknown; the bookie must exit and replay its journal."""

    advice = Advice.STOP


class EntryDamagedError(BookieError):
    """An entry's checksum, ledger id or entry id is wrong."""

    advice = Advice.RETRY


class CookieMismatchError(BookieError):
    """The directories do not belong to this bookie, or one of them was lost."""


class JournalCorruptError(BookieError):
    """A journal is damaged before its valid end."""


class DirectoryLockedError(BookieError):
    """Another process holds the directory."""


class FrameError(BookieError):
    """A frame breaks the wire format; the connection is closed."""

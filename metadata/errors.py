"""Errors of the metadata store, a branch of the tree whose root is ``heliograph.base.errors``.

MetadataError
|- NoNodeError                    REFRESH
|- NodeExistsError                REFRESH
|- BadVersionError                REFRESH  the node changed since it was read
|- NotEmptyError                  REFRESH  the node has children
|- NoChildrenForEphemeralsError   STOP
|- InvalidPathError               STOP
|- ValueTooLargeError             STOP
|  `- RecordTooLargeError          STOP     a record of ours is above the limit of its kind
|- SessionExpiredError            STOP     every ephemeral of the session is gone
|- ConnectionLossError            RETRY    the outcome is unknown
|- MetadataProtocolError          STOP     the peer does not speak this protocol
`- RecordError                    STOP     a stored record is damaged, or newer than this program
"""

from __future__ import annotations

from heliograph.base.errors import Advice, HeliographError


class MetadataError(HeliographError):
    """The root of this branch.

    ``operation_index`` is the number of the operation of a ``multi`` that could not be done.
    """

    operation_index: int | None = None


class NoNodeError(MetadataError):
    """The node (or the parent of a node to be created) does not exist."""

    advice = Advice.REFRESH


class NodeExistsError(MetadataError):
    """The node to be created exists."""

    advice = Advice.REFRESH


class BadVersionError(MetadataError):
    """The node's version is not the expected one."""

    advice = Advice.REFRESH


class NotEmptyError(MetadataError):
    """The node to be deleted has children."""

    advice = Advice.REFRESH


class NoChildrenForEphemeralsError(MetadataError):
    """An ephemeral node cannot have children."""


class InvalidPathError(MetadataError):
    """The path is not absolute, has an empty, "." or ".." part or a forbidden character, or ends with a slash."""


class ValueTooLargeError(MetadataError):
    """The value, or the whole request, is above its limit. Nothing was changed."""


class RecordTooLargeError(ValueTooLargeError):
    """A record is above the limit of its kind. Nothing was written; ``limit`` says how large it may be."""


class SessionExpiredError(MetadataError):
    """The session is over; its ephemerals are gone."""


class ConnectionLossError(MetadataError):
    """The connection was lost while the call was under way: it may or may not have happened."""

    advice = Advice.RETRY


class MetadataProtocolError(MetadataError):
    """The peer sent bytes that are not this protocol, or speaks another version of it."""


class RecordError(MetadataError):
    """A stored record fails its checksum, is malformed, or was written by a newer version."""

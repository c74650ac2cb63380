"""The states of a client's connection (pure)."""

from __future__ import annotations

import enum

from heliograph.base.lifecycle import Lifecycle


class ConnectionState(enum.Enum):
    """How far a connection has come."""

    NEW = "new"
    HANDSHAKE = "handshake"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    CLOSING = "closing"
    CLOSED = "closed"


CONNECTION_LIFECYCLE = Lifecycle(
    {
        ConnectionState.NEW: (
            "There is no socket yet: under TLS, the handshake of TLS comes first.",
            {ConnectionState.HANDSHAKE, ConnectionState.CLOSING},
        ),
        ConnectionState.HANDSHAKE: (
            "The socket is open. The first command of the client has to be CONNECT.",
            {
                ConnectionState.AUTHENTICATING,
                ConnectionState.CONNECTED,
                ConnectionState.CLOSING,
                ConnectionState.CLOSED,
            },
        ),
        ConnectionState.AUTHENTICATING: (
            "The credentials of CONNECT are being checked. No other command is served.",
            {ConnectionState.CONNECTED, ConnectionState.CLOSING, ConnectionState.CLOSED},
        ),
        ConnectionState.CONNECTED: (
            "Commands are handled and answered.",
            {ConnectionState.CLOSING, ConnectionState.CLOSED},
        ),
        ConnectionState.CLOSING: (
            "The broker hangs up: nothing more is handled or answered.",
            {ConnectionState.CLOSED},
        ),
        ConnectionState.CLOSED: (
            "The socket is closed, and the producers and consumers of the client are gone.",
            (),
        ),
    }
)


class SignOfLife(enum.Enum):
    """What the keep-alive knows of a client. Any of these may follow any other."""

    HEARD = "heard"  # since the last look
    QUIET = "quiet"  # nothing since the last look, and nothing was asked
    PINGED = "pinged"  # nothing since a PING

"""The interface of authentication methods, of this package and of plug-ins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from heliograph.auth.principal import Credentials, Principal

ENTRY_POINT_GROUP = "heliograph.authentication"


class AuthenticationProvider(ABC):
    """One method by which callers show who they are.

    A plug-in is a subclass that an installed distribution names in the entry point group ``heliograph.authentication``
    and the setting ``auth.providers`` lists. It is made with the cluster's ``AuthConfig`` as its only argument, in each
    process that has a door, when the process starts.

    Attributes:
        method: Pulsar's name of the method, as clients send it in CONNECT.
    """

    method: ClassVar[str]

    @abstractmethod
    async def authenticate(self, credentials: Credentials) -> Principal:
        """Return who presents ``credentials``.

        It runs in the event loop that serves all connections: what takes long or blocks belongs on a thread.

        Raises:
            AuthenticationError: the credentials are missing, invalid or expired. The message goes to the log and not
                to the caller; it must not hold the credentials.
        """

    def reload_if_changed(self) -> None:
        """Read files again that changed. It is called about once a second; the default does nothing."""
        return

    def close(self) -> None:
        """Release threads and files; the default does nothing."""
        return

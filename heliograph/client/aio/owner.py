"""What a handle needs from the client it comes from."""

from __future__ import annotations

from typing import Protocol

from heliograph.client.aio.handle import AsyncHandle
from heliograph.client.aio.session import ClientSession


class HandleOwner(Protocol):
    """The client as its handles see it; ``AsyncClient`` is one. It is part of the handle's pickle."""

    async def session(self) -> ClientSession:
        """Return what all handles of the client share; open the client first if it is not open yet."""

    def adopt(self, handle: AsyncHandle) -> None:
        """Register a handle in use, to be closed with the client."""

    def release(self, handle: AsyncHandle) -> None:
        """Forget a handle that was closed or is not in use."""

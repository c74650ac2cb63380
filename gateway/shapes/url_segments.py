"""URL paths that are split before they are decoded, as in Pulsar, so that a topic name may contain an encoded slash.

A server hands an app the decoded path, in which ``%2F`` and ``/`` look the same. ``SegmentPaths`` rewrites it from the
raw path: every segment is decoded, then only ``%`` and ``/`` inside it are encoded again. Routes therefore match
whole segments, and ``decoded`` gives the segment's text. A trailing slash is removed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send


class SegmentPaths:
    """ASGI middleware that replaces the path by one in which an encoded slash does not split a segment."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Rewrite the path of HTTP requests and WebSocket upgrades."""
        if scope["type"] in ("http", "websocket"):
            scope["path"] = routed_path(scope)
        return self._app(scope, receive, send)


def routed_path(scope: dict[str, Any] | Scope) -> str:
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        path: str = scope["path"]
    else:
        path = raw.decode("ascii", errors="replace").partition("?")[0]
        if "%" in path:
            path = "/".join(_escaped(unquote(segment)) for segment in path.split("/"))
    return path.rstrip("/") or "/"


def decoded(segment: str) -> str:
    """Return the text of one segment of a path that ``SegmentPaths`` made."""
    return segment.replace("%2F", "/").replace("%25", "%")


def _escaped(segment: str) -> str:
    return segment.replace("%", "%25").replace("/", "%2F")

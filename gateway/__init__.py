"""The HTTP and WebSocket interface of a cluster. Every session, window and body is bounded (I15)."""

if __name__ != "heliograph.gateway":
    raise ImportError(f"{__name__!r} is a folder of Heliograph: import heliograph.gateway instead")

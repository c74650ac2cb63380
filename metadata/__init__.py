"""The metadata store: one port with ZooKeeper's semantics, its backends, and what is built on it."""

if __name__ != "heliograph.metadata":
    raise ImportError(f"{__name__!r} is a folder of Heliograph: import heliograph.metadata instead")

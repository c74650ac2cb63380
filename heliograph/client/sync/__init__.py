"""The sync client: the async handles, run on one event loop thread per process. Most of it is generated."""

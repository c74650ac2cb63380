"""The sync client: the async handles, run on one event loop thread per process.

``make handles`` generates every file of this folder but ``handle.py``, which holds what is written by hand.
"""

"""Clients and tools that are not ours, at their published versions, against a running Heliograph.

Each test runs a program in the client's own language and reads its result lines. What a client can do is noted, and
``docs/clients.md`` is generated from the notes.
"""

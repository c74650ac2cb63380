"""Owns topics: managed ledgers, cursors, dispatch, and Pulsar's binary protocol."""

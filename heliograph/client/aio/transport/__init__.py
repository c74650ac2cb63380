"""Connections to brokers, shared by all handles of a client, and lookups; unanswered requests are bounded (I15)."""

"""Fuzzers of every listener: seeded conversations of hostile clients, beside a client whose messages are checked."""

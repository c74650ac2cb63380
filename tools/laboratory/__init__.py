"""Comparisons with other logs and with older revisions of this code; the benchmarks themselves are ``tests/bench``."""

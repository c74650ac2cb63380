"""Pulsar's Python client, as its users write it, in the process of the tests."""

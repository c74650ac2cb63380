"""Pulsar's Go client and Go's administration library: a program of many scenarios, and tests that read its results."""

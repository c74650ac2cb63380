"""Pulsar's own tools: pulsar-admin, command by command, and pulsar-perf."""

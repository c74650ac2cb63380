"""Pulsar's administrative REST interface: each route calls operations of the table. It keeps no invariant."""

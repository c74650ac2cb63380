"""Pulsar's Rust client: one program with a few scenarios."""

"""Pulsar's binary protocol without I/O, for both ends of a wire: frames, entries, batches, ids and names."""

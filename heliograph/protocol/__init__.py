"""Pulsar's binary protocol for both ends of a connection: frames, entries, batches, ids, names. No I/O. Frames and
entries have limits, which the decoders check before they keep anything (I15)."""

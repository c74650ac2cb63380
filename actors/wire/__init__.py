"""The bookie protocol: entries, messages, frames, the handshake and the client's connections.

Every entry and every header has a checksum, and every queue and frame a bound (I15).
"""

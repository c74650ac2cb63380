"""Limits on how fast and how much clients may publish and brokers may deliver: rates, and the bytes that may be
published and not confirmed (I15)."""

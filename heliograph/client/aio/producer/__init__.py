"""Producers: entries are confirmed in order (I2), sent again after a reconnect, and bounded by a window (I15)."""

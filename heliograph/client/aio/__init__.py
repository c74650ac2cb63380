"""The asyncio client. Receipts are matched in entry order (I2); every queue and window has a named bound (I15)."""

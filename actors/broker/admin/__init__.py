"""The administrative operations, the same on every broker. Subscriptions move only by explicit requests (I11)."""

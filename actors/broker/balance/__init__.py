"""Spreading bundles over brokers, and the duties of the leader. Its decisions are advice: ownership of a bundle is
decided by metadata alone (I13). The leader also deletes orphaned ledgers (I14)."""

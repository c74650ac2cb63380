"""What brokers, auditors and readers say to bookies: entries, messages, frames, connections."""

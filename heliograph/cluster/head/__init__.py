"""Ray's head on this machine: its process, and its state on disk."""

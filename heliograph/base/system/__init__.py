"""The operating system: what Linux alone has, and what macOS has in its place. Synced data is on the disk (I1)."""

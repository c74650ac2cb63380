"""What to do about a bookie whose disk died, or that is gone: replace the disk, or make its copies again elsewhere."""

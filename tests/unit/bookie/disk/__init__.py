"""Unit tests of how a bookie uses its disks."""

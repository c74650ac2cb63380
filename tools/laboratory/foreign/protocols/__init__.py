"""The least client of each server: what it sends and takes, checked, on one connection."""

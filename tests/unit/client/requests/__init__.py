"""What handles do with a cluster in the process of the tests."""

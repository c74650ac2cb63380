"""The parts of a cluster by name: each is a Ray actor of its own, or one of the parts that share a process."""

"""What a process of the cluster speaks, and what its node has installed. Nothing here loads Ray."""

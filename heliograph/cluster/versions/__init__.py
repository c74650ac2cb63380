"""The formats that a process of the cluster speaks, and the packages of its node. Nothing here loads Ray."""

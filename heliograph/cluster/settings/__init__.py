"""The settings of a cluster: their sources, the file that keeps them, and their meanings."""

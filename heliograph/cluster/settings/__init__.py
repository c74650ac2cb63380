"""The settings of a cluster: where they come from, the file that keeps them, and what they mean."""

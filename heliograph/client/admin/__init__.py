"""Administration of a cluster over Ray, derived from the table of operations. It keeps no invariant."""

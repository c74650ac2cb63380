"""Commands that start, stop, inspect and repair a cluster and its bookies. Looking into a bookie changes nothing."""

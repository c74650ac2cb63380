"""Machines: network namespaces, each with a raylet of its own, that make one cluster, and what can happen to them."""

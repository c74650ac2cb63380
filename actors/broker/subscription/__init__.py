"""Deliver a topic's entries to the consumers of its subscriptions, and take their acknowledgements.

Keeps I13 (a subscription of a lost topic delivers nothing) and I15 (a bounded number of entries in a turn of the loop).
"""

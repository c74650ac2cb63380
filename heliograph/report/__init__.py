"""The one report of a cluster: what its parts are and what is wrong, made by the operator and read by everyone else.

The operator, or the one process of a cluster without Ray, writes the record. ``helio``, the gateway and its console
read it. Nothing here changes anything else, or loads Ray.
"""

"""The one report of a cluster: its parts and problems. The operator makes it, and everyone else reads it.

The operator, or the one process of a cluster without Ray, writes the record. ``helio``, the gateway and its console
read it. Nothing here changes anything else, or loads Ray.
"""

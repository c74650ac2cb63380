"""A further machine of a cluster: its Ray node, what it remembers of itself, and how it comes and goes.

Nothing here changes what other machines have: the operator gives a node its parts and takes them out.
"""

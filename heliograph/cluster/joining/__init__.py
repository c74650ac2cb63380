"""A further machine of a cluster: its Ray node, its record of itself, and how it joins and leaves.

Nothing here changes what other machines have: the operator gives a node its parts and takes them out.
"""

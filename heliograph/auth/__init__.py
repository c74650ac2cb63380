"""Authentication and authorisation: the identity of a caller, and the rights that its role has.

Every door of the cluster decides by this package, so that a role has the same rights at all of them.
"""

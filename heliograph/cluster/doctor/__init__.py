"""The checks of ``helio doctor``: what of this machine, its settings and a running cluster would fail, and the way out.

A check changes nothing but files of its own that it deletes again, and never raises: what it cannot find out is a
warning.
"""

"""The operator: it gives nodes their parts, takes parts out, restarts them one by one, and reports what is wrong.

What it decides is pure (``roster``, ``planning``) and stored in the metadata before it is done.
"""

"""The operator: gives nodes their parts, takes parts out, restarts them in turn, and reports problems.

Its decisions (``roster``, ``planning``: neither does I/O) are stored in the metadata before they are carried out.
"""

"""The operator: it gives nodes their parts, takes parts out, restarts them one by one, and reports what is wrong.

What it decides (``roster``, ``planning``: neither does I/O) is stored in the metadata before it is done.
"""

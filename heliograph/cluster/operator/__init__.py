"""The operator: it gives nodes their parts, takes parts out, restarts them one by one, and reports what is wrong.

Its decisions (``roster``, ``planning``: neither does I/O) are stored in the metadata before they are carried out.
"""

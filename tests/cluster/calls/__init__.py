"""Every call of the Python handles in every situation: each ends in a result, a named error or a documented wait.

A cell is one call in one situation, by the sync or the async handles, in a process of its own. ``table.py`` says what
each has to come to and prints that into docs/python.md; ``python -m tests.cluster.calls --url URL`` runs cells.
"""

"""Commands that look at a running cluster again and again: its busiest parts, changes of its health, a part's stacks.

They change nothing. Problems are those of the one report (``heliograph.report``).
"""

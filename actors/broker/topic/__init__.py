"""Serve the topics that this broker owns: load, publish, subscribe, apply policies, close, delete.

Keeps I13 (a topic that was lost confirms and dispatches nothing) and names what trimming must keep (I14).
"""

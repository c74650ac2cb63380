"""The operator: it starts, inspects and stops a cluster, and holds its configuration (I15).

Only ``deployment.py`` imports actor modules.
"""

"""Metrics: their definitions, counts of latencies, and the text that Prometheus reads.

Each part declares its metrics beside what it counts; ``heliograph/monitoring`` has the table of all of them.
"""

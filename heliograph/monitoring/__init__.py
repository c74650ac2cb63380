"""Files made from the metrics: boards of Grafana, alert rules with their runbooks, the configuration of Prometheus.

All of it is pure: text out of tables. ``helio metrics`` writes it to files.
"""

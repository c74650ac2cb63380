"""Tenants, namespaces, policies and topics as metadata records, and the ownership of bundles: a broker serves only what
its session owns (I13), and records change by compare-and-set (I9)."""
